"""Telephone calls with programs that know SIP from elsewhere: baresip and SIPp."""

import asyncio
import re
import shutil
import subprocess

import numpy as np
import pytest
from telephone import HOST, free_port, until
from test_sip_calls import LONG, heard, received

from parley.protocol import Dtmf

BARESIP = """\
poll_method epoll
sip_listen {host}:0
sip_cafile {folder}/certificate.pem
sip_certificate {folder}/agent.pem
audio_player aubridge,none
audio_source ausine,440
ausrc_srate 48000
auplay_srate 48000
ausrc_channels 2
auplay_channels 2
rtp_stats yes
module_path {modules}
module opus.so
module g711.so
module srtp.so
module aubridge.so
module ausine.so
module_tmp account.so
module_app menu.so
module ctrl_tcp.so
ctrl_tcp_listen {host}:{port}
"""
RECEIVED = re.compile(r"packets:\s+\d+\s+(\d+)\n.*\nerrors:\s+\d+\s+(\d+)")
MODULES = "/usr/lib/baresip/modules"
LATE_OFFER = """\
<?xml version="1.0" encoding="ISO-8859-1" ?>
<scenario name="offer in the response">
  <send retrans="500"><![CDATA[

    INVITE sip:agent@[remote_ip]:[remote_port] SIP/2.0
    Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
    From: <sip:sipp@[local_ip]:[local_port]>;tag=[call_number]
    To: <sip:agent@[remote_ip]:[remote_port]>
    Call-ID: [call_id]
    CSeq: 1 INVITE
    Contact: <sip:sipp@[local_ip]:[local_port]>
    Max-Forwards: 70
    Content-Length: 0

  ]]></send>
  <recv response="100" optional="true"/>
  <recv response="180" optional="true"/>
  <recv response="200" rrs="true"/>
  <send><![CDATA[

    ACK sip:agent@[remote_ip]:[remote_port] SIP/2.0
    Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
    From: <sip:sipp@[local_ip]:[local_port]>;tag=[call_number]
    [last_To:]
    Call-ID: [call_id]
    CSeq: 1 ACK
    Max-Forwards: 70
    Content-Type: application/sdp
    Content-Length: [len]

    v=0
    o=- 1 1 IN IP4 [local_ip]
    s=-
    c=IN IP4 [local_ip]
    t=0 0
    m=audio [media_port] RTP/AVP 0
    a=rtpmap:0 PCMU/8000

  ]]></send>
  <pause milliseconds="1000"/>
  <send retrans="500"><![CDATA[

    BYE sip:agent@[remote_ip]:[remote_port] SIP/2.0
    Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
    From: <sip:sipp@[local_ip]:[local_port]>;tag=[call_number]
    [last_To:]
    Call-ID: [call_id]
    CSeq: 2 BYE
    Max-Forwards: 70
    Content-Length: 0

  ]]></send>
  <recv response="200"/>
</scenario>
"""


def program(name):
    if (found := shutil.which(name)) is None:
        pytest.skip(f"needs {name}")
    return found


def make_certificate(folder):
    """A certificate of this machine, with its key."""
    names = f"subjectAltName=IP:{HOST},DNS:{HOST}"
    files = ("-keyout", folder / "key.pem", "-out", folder / "certificate.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *files, "-days", "2"]
    subprocess.run([*command, "-subj", f"/CN={HOST}", "-addext", names], check=True, capture_output=True)
    both = (folder / "certificate.pem").read_bytes() + (folder / "key.pem").read_bytes()
    (folder / "agent.pem").write_bytes(both)


class Baresip:
    """A telephone that hums."""

    def __init__(self, folder, account):
        self._folder, self._port = folder, free_port()
        values = {"folder": folder, "port": self._port, "host": HOST, "modules": MODULES}
        (folder / "config").write_text(BARESIP.format(**values))
        (folder / "accounts").write_text(f"<sip:anna@{HOST}>;regint=0;{account}\n")
        (folder / "contacts").touch()
        self._log = (folder / "log").open("wb")

    async def __aenter__(self):
        self._process = await asyncio.create_subprocess_exec(
            program("baresip"), "-f", str(self._folder), stdout=self._log, stderr=subprocess.STDOUT
        )
        async with asyncio.timeout(10):
            while True:
                try:
                    _, self._control = await asyncio.open_connection(HOST, self._port)
                except OSError:
                    await asyncio.sleep(0.05)
                else:
                    return self

    async def __aexit__(self, *_):
        self._control.close()
        self._process.terminate()
        await self._process.wait()
        self._log.close()

    async def received(self):
        """How many packets it says that it got, and how many of them were faulty."""
        log = self._folder / "log"
        await until(lambda: RECEIVED.search(log.read_text(errors="replace")))
        found = RECEIVED.search(log.read_text(errors="replace"))
        return int(found[1]), int(found[2])

    def do(self, command, params=""):
        message = f'{{"command":"{command}","params":"{params}"}}'
        self._control.write(f"{len(message)}:{message},".encode())


@pytest.mark.parametrize(
    ("account", "transport", "rate"),
    [
        ("audio_codecs=PCMU/8000/1", "", 8_000),
        ("audio_codecs=PCMA/8000/1;mediaenc=srtp-mand", ";transport=tcp", 8_000),
        ("audio_codecs=opus/48000/2;mediaenc=srtp-mand", ";transport=tls", 48_000),
    ],
)
async def test_baresip_calls(telephones, tmp_path, account, transport, rate):
    make_certificate(tmp_path)
    tls = {"certificate": str(tmp_path / "agent.pem"), "authorities": str(tmp_path / "certificate.pem")}
    port = free_port()
    listen = f"sip:{HOST}:{port}{transport if transport.endswith('tls') else ''}"
    async with (
        telephones(sip={"listen": listen} | (tls if transport.endswith("tls") else {})) as gateway,
        Baresip(tmp_path, account) as phone,
    ):
        phone.do("dial", f"sip:agent@{HOST}:{port}{transport}")
        agent = await gateway.agent()
        assert (await agent.start).output_sample_rate == rate
        voice = LONG if rate == 8_000 else np.repeat(LONG, 6)
        agent.say(voice, rate=rate)
        assert await heard(agent, 16_000) > 5_000
        phone.do("sndcode", "5")
        assert (await received(agent, Dtmf)).digits == "5"
        phone.do("hangup")
        await asyncio.wait_for(agent.over.wait(), 10)
        packets, faulty = await phone.received()
        assert (packets > 40, faulty) == (True, 0)


async def run_sipp(gateway_url, folder, *arguments):
    target = gateway_url.partition("@")[2]
    process = await asyncio.create_subprocess_exec(
        program("sipp"),
        target,
        "-i",
        HOST,
        "-p",
        str(free_port()),
        "-nostdin",
        "-timeout",
        "30",
        *arguments,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 40)
    assert process.returncode == 0, output[-3_000:].decode(errors="replace")


async def test_sipp_holds_twenty_calls(telephones, tmp_path):
    async with telephones() as gateway:
        await run_sipp(gateway.url, tmp_path, "-sn", "uac", "-m", "20", "-r", "20", "-d", "1000")
        assert len(gateway.agents) == 20
        await gateway.idle()


async def test_sipp_leaves_the_offer_to_the_gateway(telephones, tmp_path):
    (tmp_path / "late.xml").write_text(LATE_OFFER)
    async with telephones() as gateway:
        await run_sipp(gateway.url, tmp_path, "-sf", "late.xml", "-m", "1")
        assert (await gateway.agents[0].start).output_sample_rate == 8_000
        await gateway.idle()


async def test_sipp_is_called(telephones, tmp_path):
    port = free_port()
    async with telephones(sip={"trunk": f"sip:{HOST}:{port}"}) as gateway:
        answering = await asyncio.create_subprocess_exec(
            program("sipp"),
            "-sn",
            "uas",
            "-i",
            HOST,
            "-p",
            str(port),
            "-nostdin",
            "-m",
            "1",
            "-timeout",
            "30",
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        await asyncio.sleep(0.5)
        body = {"to": "+493012345678"}
        made = await gateway.http.post("/v1/sip/calls", json=body, headers=gateway.key)
        await gateway.agent()
        url = f"/v1/sip/calls/{made.json()['call_id']}"
        assert (await gateway.http.delete(url, headers=gateway.key)).status_code == 204
        assert await asyncio.wait_for(answering.wait(), 20) == 0
