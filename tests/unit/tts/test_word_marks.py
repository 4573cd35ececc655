from parley.tts.word_marks import WordMarker


def spans(text, marks):
    return [(text[m.start_char : m.end_char], m.at_sample) for m in marks]


def test_one_mark_per_word_with_its_punctuation():
    text = "Hello, Zürich!"
    marker = WordMarker(text)
    assert spans(text, marker.event(0, 0)) == [("Hello,", 0)]
    assert spans(text, marker.event(7, 500)) == [("Zürich!", 500)]
    assert marker.rest() == []


def test_several_events_of_one_word_count_once():
    text = "at 10:30 sharp"
    marker = WordMarker(text)
    events = [(0, 0), (3, 100), (6, 200), (9, 300)]
    assert [spans(text, marker.event(*event)) for event in events] == [
        [("at", 0)],
        [("10:30", 100)],
        [],
        [("sharp", 300)],
    ]


def test_words_without_an_event_belong_to_the_one_before():
    text = "- warm - and sunny ..."
    marker = WordMarker(text)
    assert spans(text, marker.event(2, 50)) == [("-", 0), ("warm", 50)]
    assert spans(text, marker.event(9, 300)) == [("-", 50), ("and", 300)]
    assert spans(text, marker.rest()) == [("sunny", 300), ("...", 300)]


def test_a_position_on_the_space_is_the_next_word():
    text = "Hi there"
    marker = WordMarker(text)
    assert spans(text, marker.event(2, 10)) == [("Hi", 0), ("there", 10)]


def test_positions_outside_the_text_are_ignored():
    marker = WordMarker("a b")
    assert marker.event(99, 5) == []
    assert len(marker.rest()) == 2
    assert WordMarker("").rest() == []
