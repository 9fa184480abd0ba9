"""The page in a real Chromium, as a person uses it.

Needs Debian's `chromium` and `chromium-driver`, or the like, in the PATH; `scripts/check_page.sh`
runs these tests where they are.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from peagle import LLM, SamplingParams
from peagle.llm import Result
from peagle.serve.settings import ServeSettings
from tests.conftest import FREE, MODEL
from tests.serve.conftest import Served

KEY = "the-key"
RAINBOW = "Explain in three sentences how a rainbow forms."

# Contrast by WCAG 2.1 between text and what lies behind it, for every element with text of its own.
CONTRASTS = """
const context = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
const painted = (colours) => {
  context.clearRect(0, 0, 1, 1);
  for (const one of colours) { context.fillStyle = one; context.fillRect(0, 0, 1, 1); }
  return context.getImageData(0, 0, 1, 1).data;
};
const luminance = ([red, green, blue]) => {
  const part = (value) => {
    value /= 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * part(red) + 0.7152 * part(green) + 0.0722 * part(blue);
};
const found = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  const apart = element.closest(":disabled, title, noscript, svg, .skip");
  if (!own || apart || !element.checkVisibility()) continue;
  const behind = [];
  for (let one = element; one; one = one.parentElement) {
    behind.unshift(getComputedStyle(one).backgroundColor);
  }
  const back = luminance(painted(behind));
  const front = luminance(painted([...behind, getComputedStyle(element).color]));
  const ratio = (Math.max(back, front) + 0.05) / (Math.min(back, front) + 0.05);
  found.push([ratio, element.textContent.slice(0, 40)]);
}
return found;
"""


@pytest.fixture(scope="module")
def drafting() -> LLM:
    """The model with its drafter network, whose trees are as large as they may be."""
    llm = LLM(MODEL, parallel_drafting_spec={"method": "peagle"}, dtype="bfloat16")
    llm.engine.costs = FREE
    return llm


@pytest.fixture(scope="module")
def locked(drafting: LLM) -> Iterator[Served]:
    with Served(drafting, ServeSettings(port=0, api_keys=(KEY,))) as server:
        yield server


class Page:
    """A tab of a browser.

    Args:
        driver: The browser.
        url: Where the page is.
    """

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url

    def __getitem__(self, name: str) -> WebElement:
        return self.driver.find_element(By.ID, name)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def until(self, holds: Callable[[], Any], seconds: float = 60) -> Any:
        return WebDriverWait(self.driver, seconds, poll_frequency=0.05).until(lambda _: holds())

    def script(self, code: str, *given: Any) -> Any:
        return self.driver.execute_script(code, *given)

    def open(self, view: str = "chat") -> None:
        self.driver.get(f"{self.url}/#{view}")

    def unlock(self, key: str = KEY) -> None:
        self.until(self["key-dialog"].is_displayed)
        self["key"].send_keys(key, Keys.ENTER)

    def fill(self, name: str, text: str) -> None:
        self[name].clear()
        self[name].send_keys(text)

    def told(self, name: str) -> str:
        """What an element says, spaces as they are."""
        return str(self[name].get_property("textContent"))

    def ask(self, text: str) -> None:
        self["message"].send_keys(text, Keys.ENTER)
        self.until(lambda: self["message"].get_property("value") == "")

    def answers(self) -> list[str]:
        return [str(one.get_property("textContent")) for one in self.all(".turn.model .text")]

    def compare(self, prompt: str = RAINBOW) -> str:
        self.fill("prompt", prompt)
        self["run"].click()
        self.until(lambda: self["run"].is_enabled() and self["verdict"].text)
        return self["verdict"].text


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    browser, its_driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert browser, "chromium is not installed"
    assert its_driver, "chromedriver is not installed"
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    # A container's root has no sandbox, and little shared memory.
    for one in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(one)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(its_driver))
    yield driver
    driver.quit()


@pytest.fixture
def page(driver: webdriver.Chrome, locked: Served) -> Iterator[Page]:
    """A new tab at the page, without a key."""
    driver.switch_to.new_window("tab")
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 1300, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    driver.get_log("browser")  # type: ignore[no-untyped-call]
    yield Page(driver, locked.url)
    # Only keys that were refused on purpose may leave a mark in the console.
    for entry in driver.get_log("browser"):  # type: ignore[no-untyped-call]
        assert "401 (Unauthorized)" in entry["message"], entry
    driver.close()
    driver.switch_to.window(driver.window_handles[0])


def plainly(served: Served, messages: Any, **fields: Any) -> Result:
    params = SamplingParams(**{"max_tokens": 200, **fields})
    return served.llm.generate([messages], params, parallel_drafting=False)[0]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_a_wrong_key_is_told_and_the_right_one_stays_in_the_tab(page: Page) -> None:
    page.open()
    page.until(page["key-said"].is_displayed)
    assert page["key-said"].text == "This server asks for an API key."
    for wrong in ("wrong", "schlüssel ✓"):
        page.unlock(wrong)
        page.until(lambda: "refused this key" in page.told("key-said"))
        page["key"].clear()
    assert page["state"].get_property("textContent") == "key needed"
    page.unlock()
    page.until(lambda: MODEL in page["model"].text)
    page.until(lambda: page.told("state") == "ready")
    assert not page["key-dialog"].is_displayed()
    assert page.script("return Object.entries(sessionStorage)") == [["peagle-key", KEY]]
    assert page.script("return [localStorage.length, document.cookie]") == [0, ""]
    page.driver.refresh()
    page.until(lambda: page.told("state") == "ready")


def test_a_conversation_whose_tokens_show_where_they_came_from(page: Page, locked: Served) -> None:
    page.open()
    page.unlock()
    page.until(lambda: MODEL in page["model"].text)
    first, second = "Why is the sky blue?", "Repeat your answer, word by word."
    page.ask(first)
    page.ask(second)
    told = page.answers()
    asked: list[dict[str, str]] = []
    for question, answer in zip((first, second), told, strict=True):
        asked.append(user(question))
        assert answer == plainly(locked, asked).text
        asked.append({"role": "assistant", "content": answer})
    looks = {}
    for origin in ("network", "lookup", "corpus", "target"):
        tokens = page.all(f".turn.model .token.{origin}")
        assert tokens, origin
        looks[origin] = (
            tokens[0].value_of_css_property("background-color"),
            tokens[0].value_of_css_property("border-bottom-style"),
        )
    assert len(set(looks.values())) == 4
    figures = page.all(".turn.model .figures")[1].text
    assert "tokens a pass" in figures
    page["reset"].click()
    assert page.answers() == []
    page.ask(first)
    assert page.answers() == told[:1]


def test_the_tree_of_any_step_can_be_looked_at(page: Page) -> None:
    page.open()
    page.unlock()
    page.until(lambda: MODEL in page["model"].text)
    page.ask("Why is the sky blue?")
    # The first step with a path of two tokens.
    steps = [one.get_attribute("data-step") for one in page.all(".token[data-step]")]
    step = next(one for one in steps if steps.count(one) > 2)
    assert step is not None
    tokens = page.all(f".token[data-step='{step}']")
    tokens[0].click()
    said = f"Step {int(step) + 1} of {int(steps[-1] or 0) + 1}: "
    page.until(lambda: page["step-said"].text.startswith(said))
    drafted = int(page["step-said"].text.removeprefix(said).split()[0])
    boxes = page.all("#tree svg g")
    assert len(boxes) == drafted + 1
    assert len(page.all("#tree svg path")) == drafted + 1
    written = [str(one.get_property("textContent")) for one in tokens]
    accepted = [one.text for one in page.all("#tree svg g.accepted text")]
    assert [text.replace(" ", "␣").replace("\n", "⏎") for text in written] == accepted
    classes = [str(one.get_attribute("class")).split()[1] for one in tokens]
    assert [one.get_attribute("class") for one in page.all("#tree svg g.accepted")] == [
        f"{origin} accepted" for origin in classes
    ]
    assert len(page.all(".token.shown")) == len(tokens)
    # By keyboard, to the step before.
    page["step"].send_keys(Keys.ARROW_LEFT)
    page.until(lambda: page["step-said"].text.startswith(f"Step {step} of"))
    assert page["step"].get_attribute("aria-valuetext") == said[:-2].lower().replace(
        f"step {int(step) + 1}", f"step {step}"
    )


@pytest.mark.parametrize("chosen", [("0", ""), ("0.9", "7")], ids=["greedy", "seeded"])
def test_side_by_side_the_answers_are_equal(
    page: Page, locked: Served, chosen: tuple[str, str]
) -> None:
    page.open("compare")
    page.unlock()
    temperature, seed = chosen
    page.fill("temperature", temperature)
    page.fill("seed", seed)
    page.fill("max-tokens", "60")
    said = page.compare()
    expected = plainly(
        locked,
        [user(RAINBOW)],
        max_tokens=60,
        temperature=float(temperature),
        **({"seed": int(seed)} if seed else {}),
    )
    count = len(expected.token_ids)
    assert said.startswith(f"Equal: all {count} token ids are the same, compared one by one.")
    assert page.told("with-text") == page.told("without-text") == expected.text
    assert page.all("#with-text .token:not(.target)")
    assert page.all("#without-text .token:not(.target)") == []
    assert f"{count} tokens · {count - 1} passes" in page["without-figures"].text
    assert len(page.all("#strip i")) == count
    page.all("#proof summary")[0].click()
    rows = page.until(lambda: page.all("#proof-rows tr"))
    cells = [[cell.text for cell in row.find_elements(By.TAG_NAME, "td")] for row in rows]
    assert [int(row[1].split()[0]) for row in cells] == expected.token_ids
    assert [int(row[3].split()[0]) for row in cells] == expected.token_ids
    assert {row[4] for row in cells} == {"✓"}


def test_a_seed_is_drawn_for_both_where_none_is_told(page: Page) -> None:
    page.open("compare")
    page.unlock()
    page.fill("temperature", "1")
    page.fill("max-tokens", "30")
    assert page.compare().startswith("Equal")
    assert int(str(page["seed"].get_property("value"))) >= 0


def test_answers_that_differ_are_told(page: Page) -> None:
    page.open("compare")
    page.unlock()
    page.until(lambda: MODEL in page["model"].text)
    page.fill("max-tokens", "20")
    # What answers without speculation is made to send another id for the fifth token.
    page.script(
        """
        const asked = fetch;
        globalThis.fetch = async (path, told) => {
          const response = await asked(path, told);
          if (!told.body?.includes('"method":"none"')) return response;
          let seen = 0;
          const text = (await response.text()).replace(/\\{"id":(\\d+),"text"/g, (all, id) =>
            (++seen === 5 ? `{"id":${Number(id) + 1},"text"` : all));
          return new Response(text, response);
        };
        """
    )
    assert page.compare().startswith("Different from token 5 on.")
    assert [one.get_attribute("class") for one in page.all("#strip i")].index("different") == 4
    assert len(page.all("#strip i.different")) == 1


def test_charts_show_what_happens(page: Page, locked: Served) -> None:
    page.open()
    page.unlock()
    page.ask("Count from one to thirty.")
    charts = page.all("#charts .chart")
    assert len(charts) == 6

    def lines() -> list[list[str]]:
        """Points of all lines, read at once: they are drawn anew every second."""
        code = "return [...document.querySelectorAll('#charts polyline')].map(%s)"
        return [one.split() for one in page.script(code % "(one) => one.getAttribute('points')")]

    page.until(lambda: len(lines()) == 9 and min(map(len, lines())) >= 2)
    told = [one.find_element(By.TAG_NAME, "output").text for one in charts]
    assert "–" not in told
    assert told[4] == "0 / 0"

    def bars() -> list[float]:
        return page.script(
            "return [...document.querySelectorAll('#charts rect')]"
            ".map((one) => one.height.baseVal.value)"
        )

    def shares() -> list[float]:
        live = locked.http.get("/live", headers={"Authorization": f"Bearer {KEY}"}).json()
        return live["acceptance_by_depth"]

    # Each depth's bar fills its share of the chart, 52 high; the last step may not be drawn yet.
    page.until(lambda: bars() == pytest.approx([52 * share for share in shares()], abs=0.01))
    assert len(bars()) > 2

    def falls() -> bool:
        """Whether the rate's line has come down from the chart's top to its ground."""
        heights = [float(point.split(",")[1]) for point in lines()[0]]
        return min(heights) == 4 and heights[-1] == 54

    page.until(falls)


def test_text_is_never_html(page: Page, locked: Served) -> None:
    page.open()
    page.unlock()
    page.until(lambda: MODEL in page["model"].text)
    page.fill("max-tokens", "60")
    said = "Write this again: <img src=x onerror=\"document.title='hacked'\"><b>bold</b>"
    page.ask(said)
    assert page.all(".turn.user .text")[0].text == said
    expected = plainly(locked, [user(said)], max_tokens=60).text
    assert "<" in expected
    assert page.answers() == [expected]
    assert page.all(".conversation img, .conversation b, #tree img") == []
    assert page.driver.title == f"{locked.llm.name} · peagle"


def test_mistakes_are_told_where_they_are_made(page: Page) -> None:
    page.open()
    page.unlock()
    page.until(lambda: MODEL in page["model"].text)
    page.fill("max-tokens", "9999999")
    page["message"].send_keys("Hello", Keys.ENTER)
    page.until(lambda: "max_tokens is 9999999" in page["chat-problem"].text)
    assert page.answers() == []
    assert page["message"].get_property("value") == "Hello"
    # The browser notes the refused request in the console, which is as it should be.
    noted = [one["message"] for one in page.driver.get_log("browser")]  # type: ignore[no-untyped-call]
    assert ["400 (Bad Request)" in one for one in noted] == [False, True]
    page.fill("max-tokens", "-1")
    page["send"].click()
    page.until(lambda: page["chat-problem"].text.startswith("Longest answer: "))
    page.fill("max-tokens", "5")
    page["send"].click()
    page.until(lambda: len(page.answers()) == 1)
    assert not page["chat-problem"].is_displayed()


def test_stopping_ends_the_answer_and_frees_its_place(page: Page, locked: Served) -> None:
    page.open()
    page.unlock()
    page.until(lambda: MODEL in page["model"].text)
    page.fill("max-tokens", "4000")
    page["message"].send_keys("Write a very long story about a ship.", Keys.ENTER)
    page.until(lambda: page.all(".turn.model .token"))
    page["stop"].click()
    page.until(page["send"].is_enabled)
    assert "Stopped" in page.all(".turn.model .figures")[0].text
    page.until(lambda: locked.llm.engine.kv_cache.used_bytes == 0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_can_be_read_reached_and_named(page: Page, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    page.open()
    page.until(page["key-dialog"].is_displayed)
    low = [one for one in page.script(CONTRASTS) if one[0] < 4.5]
    assert low == []
    page.unlock()
    page.ask("Why is the sky blue?")
    backgrounds = set()
    for view in ("chat", "compare"):
        page.open(view)
        if view == "compare":
            page.compare()
            page.all("#proof summary")[0].click()
            page.until(lambda: page.all("#proof-rows tr"))
        found = page.script(CONTRASTS)
        assert len(found) > 40
        assert [one for one in found if one[0] < 4.5] == []
        for control in page.all("button, input, textarea, a, summary, [tabindex='0']"):
            if control.is_displayed():
                assert control.accessible_name, control.get_attribute("outerHTML")
        backgrounds.add(page.all("body")[0].value_of_css_property("background-color"))
    assert len(backgrounds) == 1
    dark = page.script("return matchMedia('(prefers-color-scheme: dark)').matches")
    assert dark is (scheme == "dark")


def test_it_fits_on_a_phone_and_works_by_keyboard_alone(page: Page) -> None:
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True},
    )
    page.open("compare")
    # The dialog has the focus as it opens: nothing is clicked.
    page.until(page["key-dialog"].is_displayed)
    page.driver.switch_to.active_element.send_keys(KEY, Keys.ENTER)
    page.until(lambda: MODEL in page["model"].text)
    page["prompt"].send_keys(Keys.TAB, Keys.NULL)
    active = page.driver.switch_to.active_element
    assert active.get_attribute("id") == "run"
    active.send_keys(Keys.ENTER)
    page.until(lambda: page["verdict"].text.startswith("Equal"))
    for view in ("compare", "chat"):
        page.open(view)
        assert page.script("return document.documentElement.scrollWidth") <= 360
        assert page.script("return visualViewport.width") == 360


def test_everything_comes_from_this_server(page: Page, locked: Served) -> None:
    page.open()
    page.unlock()
    page.ask("Name a fish.")
    fetched = page.script("return performance.getEntriesByType('resource').map((one) => one.name)")
    assert any(one.endswith("/page/main.js") for one in fetched)
    assert any(one.endswith("/live") for one in fetched)
    assert all(one.startswith(f"{locked.url}/") for one in fetched), json.dumps(fetched)
    assert page.script("return document.scripts.length") == 1
