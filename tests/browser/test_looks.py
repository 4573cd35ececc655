"""The page on a phone and a desktop, in light and dark, by keyboard, without motion.

Pictures go to ``out/browser``.
"""

from __future__ import annotations

from playwright.sync_api import expect

from parley.launcher.options import ROOT

PICTURES = ROOT / "out" / "browser"
SIZES = {"phone": (390, 844), "desktop": (1280, 800)}
READABLE = 4.5
"""Contrast that WCAG 2 asks for, level AA."""

CONTRASTS = """() => {
  const channel = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const luminance = ([r, g, b]) => {
    return 0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const isText = (node) => node.nodeType === Node.TEXT_NODE && node.data.trim();
  const found = {};
  for (const element of document.querySelectorAll('body *')) {
    const isRead = element.checkVisibility() && !element.matches('.unseen *');
    if (!isRead || ![...element.childNodes].some(isText)) continue;
    const style = getComputedStyle(element);
    const lights = [luminance(parse(style.color)), luminance(behind(element))].sort((a, b) => b - a);
    found[`${element.tagName} ${element.className} ${element.id}`] = (lights[0] + 0.05) / (lights[1] + 0.05);
  }
  return found;
}"""
TARGETS = """() => [...document.querySelectorAll('button, input:not([type=checkbox]), select')]
  .filter((element) => element.checkVisibility() && !element.closest('.unseen'))
  .map((element) => [element.id, element.getBoundingClientRect().height])"""


def test_page_fits_and_is_readable(gateway, open_page):
    PICTURES.mkdir(parents=True, exist_ok=True)
    with open_page(gateway, 0.5, "weather", 60.0) as visit:
        page = visit.page
        expect(page.locator("#about-facts")).to_be_visible()
        check_all(page, "1-ready")
        page.get_by_role("button", name="Code").first.click()
        check_all(page, "2-code")
        page.keyboard.press("Escape")
        visit.begin()
        visit.wait_for_answer("Paris")
        visit.wait_for_message("metrics")
        visit.say("tell me a story")
        expect(page.locator("li.agent .heard").last).to_contain_text("robot", timeout=15_000)
        check_all(page, "3-talking")
        page.locator("#turns summary").first.evaluate("element => element.click()")
        page.locator("#times-open").evaluate("element => element.click()")
        check_all(page, "4-times")
        page.locator("#events-open").click()
        check_all(page, "5-events")
        page.locator("#events-open").click()
        page.get_by_role("button", name="Settings").click()
        check_all(page, "6-settings")
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Hang up").click()
        visit.until("ended")
        check_all(page, "7-ended")


def check_all(page, name):
    """On every size of screen, in both schemes."""
    page.mouse.move(0, 0)
    for size, (width, height) in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme, reduced_motion="no-preference")
            page.screenshot(path=PICTURES / f"{size}-{scheme}-{name}.png", animations="disabled")
            contrasts = page.evaluate(CONTRASTS)
            assert {what: ratio for what, ratio in contrasts.items() if ratio < READABLE} == {}
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert [target for target in page.evaluate(TARGETS) if target[1] < 36] == []


def test_page_works_by_keyboard_and_screen_reader(gateway, open_page):
    with open_page(gateway, reduced_motion="reduce") as visit:
        page = visit.page
        start = page.get_by_role("button", name="Start talking")
        expect(page.locator("#about-facts")).to_be_visible()
        for _ in range(12):
            page.keyboard.press("Tab")
            if start.evaluate("element => element === document.activeElement"):
                break
        expect(start).to_be_focused()
        assert start.evaluate("element => getComputedStyle(element).outlineStyle") == "solid"
        page.keyboard.press("Enter")
        visit.until("live")
        expect(page.get_by_role("button", name="Mute")).to_be_focused()
        page.keyboard.press("Shift+Tab")
        expect(page.get_by_label("Type instead of speaking")).to_be_focused()
        page.keyboard.type("tell me a story")
        page.keyboard.press("Enter")
        expect(page.locator("li.agent .heard").last).to_contain_text("Once", timeout=15_000)
        page.keyboard.press("Escape")
        expect(page.locator("li.agent")).to_contain_text("cut: you stopped it", timeout=10_000)
        read = page.locator("#aloud p")
        expect(read.nth(0)).to_have_text("You: tell me a story")
        expect(read.nth(1)).to_contain_text("Parley: Once upon a time")
        assert page.evaluate("document.getAnimations().length") == 0
