/* A wall clock that differs from the machine's by a number of seconds, for processes that preload this.

   The number is an int64 in the file that PARLEY_CHAOS_CLOCK names; a change of it is seen at once. Monotonic
   clocks are the machine's, and so are the times of files.

   Waits until a time of the wall clock follow its jumps as with the kernel's own clock, LOOK_NS later at most:
   those of semaphores and mutexes, by which Triton's Python backend waits, of condition variables, of sleeps,
   and of futexes that are called by their number, as gRPC's abseil does. A wait on a condition variable ends
   every LOOK_NS without a signal, which POSIX allows. Not translated are read-write locks, POSIX message
   queues, timers, and clocks that are read by the number of the system call: nothing in a server or a gateway
   uses those of the wall clock. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Of pthread_cond_t since glibc 2.25: __PTHREAD_COND_CLOCK_MONOTONIC_MASK in its __wrefs. */
#define COND_IS_MONOTONIC 2
/* How soon a wait notices that the clock was set. */
#define LOOK_NS 250000000

typedef int clock_gettime_t(clockid_t, struct timespec *);
typedef int clock_nanosleep_t(clockid_t, int, const struct timespec *, struct timespec *);
typedef long syscall_t(long, ...);

/* Others' constructors may run, and start threads, before one of this library: so all is done at the first
   call, and twice where two threads come at once, with the same result. */
static int64_t offset(void)
{
    static const int64_t none;
    static const volatile int64_t *shared;
    if (!shared) {
        const char *path = getenv("PARLEY_CHAOS_CLOCK");
        int descriptor = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *mapped = MAP_FAILED;
        if (descriptor >= 0) {
            mapped = mmap(NULL, sizeof *shared, PROT_READ, MAP_SHARED, descriptor, 0);
            close(descriptor);
        }
        shared = mapped == MAP_FAILED ? &none : mapped;
    }
    return *shared;
}

static int is_wall(clockid_t clock)
{
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
}

static int read_machine(clockid_t clock, struct timespec *now)
{
    static clock_gettime_t *real;
    if (!real)
        real = (clock_gettime_t *)dlsym(RTLD_NEXT, "clock_gettime");
    return real(clock, now);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = read_machine(clock, now);
    if (!result && is_wall(clock))
        now->tv_sec += offset();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    (void)zone; /* obsolete */
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME_COARSE, &precise);
    if (now)
        *now = precise.tv_sec;
    return precise.tv_sec;
}

int timespec_get(struct timespec *now, int base)
{
    return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, now) ? base : 0;
}

static int is_before(const struct timespec *one, const struct timespec *other)
{
    return one->tv_sec < other->tv_sec || (one->tv_sec == other->tv_sec && one->tv_nsec < other->tv_nsec);
}

static int has_passed(const struct timespec *deadline)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return !is_before(&now, deadline);
}

/* When a wait until the deadline has to look at the clock again, by the machine's clock: at the deadline, or
   after LOOK_NS. */
static struct timespec next_look(const struct timespec *deadline)
{
    struct timespec machine = *deadline, look;
    machine.tv_sec -= offset();
    read_machine(CLOCK_REALTIME, &look);
    look.tv_nsec += LOOK_NS;
    if (look.tv_nsec >= 1000000000) {
        look.tv_nsec -= 1000000000;
        look.tv_sec++;
    }
    return is_before(&machine, &look) ? machine : look;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *wanted, struct timespec *left)
{
    static clock_nanosleep_t *real;
    if (!real)
        real = (clock_nanosleep_t *)dlsym(RTLD_NEXT, "clock_nanosleep");
    if (!is_wall(clock) || !(flags & TIMER_ABSTIME))
        return real(clock, flags, wanted, left);
    for (;;) {
        struct timespec look = next_look(wanted);
        int result = real(clock, flags, &look, left);
        if (result || has_passed(wanted))
            return result;
    }
}

/* Below, the kinds that name their clock do the waiting: they are not replaced here. */

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict deadline)
{
    if (cond->__data.__wrefs & COND_IS_MONOTONIC)
        return pthread_cond_clockwait(cond, mutex, CLOCK_MONOTONIC, deadline);
    struct timespec look = next_look(deadline);
    int result = pthread_cond_clockwait(cond, mutex, CLOCK_REALTIME, &look);
    /* Not waiting again: a signal may have come in between. */
    return result == ETIMEDOUT && !has_passed(deadline) ? 0 : result;
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict deadline)
{
    for (;;) {
        struct timespec look = next_look(deadline);
        int result = pthread_mutex_clocklock(mutex, CLOCK_REALTIME, &look);
        if (result != ETIMEDOUT || has_passed(deadline))
            return result;
    }
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict deadline)
{
    for (;;) {
        struct timespec look = next_look(deadline);
        int result = sem_clockwait(semaphore, CLOCK_REALTIME, &look);
        if (!result || errno != ETIMEDOUT || has_passed(deadline))
            return result;
    }
}

long syscall(long number, ...)
{
    static syscall_t *real;
    if (!real)
        real = (syscall_t *)dlsym(RTLD_NEXT, "syscall");
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(arguments, long);
    va_end(arguments);
    int is_wait = number == SYS_futex && ((int)a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET;
    const struct timespec *deadline = (const struct timespec *)a[3];
    if (!is_wait || !((int)a[1] & FUTEX_CLOCK_REALTIME) || !deadline)
        return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    for (;;) {
        /* Who wakes changes the number first: so this does not wait on where it was woken in between. */
        struct timespec look = next_look(deadline);
        long result = real(number, a[0], a[1], a[2], &look, a[4], a[5]);
        if (!result || errno != ETIMEDOUT || has_passed(deadline))
            return result;
    }
}
