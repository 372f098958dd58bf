"""Helpers for tests of HTML pages: their elements without a browser, their rendering in headless Chromium,
and hostile texts.

Without Chromium, tests that need it are skipped, or fail with OCTAVO_REQUIRE_CHROMIUM=1.
"""

import base64
import html.parser
import json
import os
import re
import shutil
import subprocess

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

HOSTILE = [
    "</script><script>document.title = 'owned'</script>",
    "<img src=x onerror=\"document.title = 'owned'\">",
    "--><svg onload=\"document.title = 'owned'\">",
    "\"'><iframe src='https://example.com'></iframe>",
    "{{7*7}}${7*7}&lt;b&gt;&#60;",
    "]]>\u2028\u2029\u0000\x1b[31m",
]


INLINE = ("a", "b", "code", "del", "ins", "small", "span", "strong")


class Elements(html.parser.HTMLParser):
    """Every start tag with its attributes, the text of each table's rows, the JSON for the script, and all
    other text with single blanks."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.rows, self.data, self.text, self._inside, self._text = [], [], "", "", [], ""
        self.feed(page)
        self.text = " ".join(self.text.split())

    def ids(self, tag):
        return [attrs.get("id") for name, attrs in self.tags if name == tag]

    def count(self, tag, style):
        return sum(name == tag and style in attrs.get("class", "").split() for name, attrs in self.tags)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("th", "td"):
            self._text = ""
        elif tag == "tr":
            self.rows.append([])
        elif tag == "script":
            self._inside.append(dict(attrs).get("id"))
        if tag not in INLINE:
            self.text += " "

    def handle_endtag(self, tag):
        if tag not in INLINE:
            self.text += " "
        if tag in ("th", "td"):
            self.rows[-1].append(self._text.strip())
        elif tag == "script":
            self._inside.pop()

    def handle_data(self, data):
        self._text += data
        if self._inside == ["data"]:
            self.data += data
        elif not self._inside:
            self.text += data


def chromium():
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        message = (
            f"no browser: none of {', '.join(BROWSERS)} is on the PATH (Debian: apt-get install chromium)"
        )
        if os.environ.get("OCTAVO_REQUIRE_CHROMIUM") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return found


class Browsed:
    """The state of a page in a browser: its DOM after all scripts have run, its log, and its requests."""

    def __init__(self, page, folder, *flags):
        net_log = folder / "net.json"
        done = subprocess.run(
            [
                *(chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *(
                    f"--user-data-dir={folder / 'profile'}",
                    "--virtual-time-budget=20000",
                    "--window-size=1240,2000",
                ),
                *(
                    "--enable-logging=stderr",
                    "--v=0",
                    f"--log-net-log={net_log}",
                    "--host-resolver-rules=MAP * ~NOTFOUND",
                ),
                *("--disable-background-networking", "--disable-component-update", "--no-first-run"),
                *flags,
                *("--dump-dom", page.as_uri()),
            ],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        self.dom = done.stdout
        self.console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    @property
    def elements(self):
        """What the page shows: its elements without those for readers without scripts."""
        return Elements(re.sub(r"<(noscript|style)>.*?</\1>", "", self.dom, flags=re.DOTALL))

    @property
    def title(self):
        return re.search(r"<title>(.*?)</title>", self.dom, re.DOTALL).group(1)


# A script that posts its measurements to the parent page: boxes beyond the frame's width, words broken across
# lines, tiles and parts of bars that are narrower than their text, and the colors of owners.
_MEASURE = """
const out = { width: innerWidth, page: document.documentElement.scrollWidth };
Object.assign(out, { beyond: [], broken: [], tiles: [], labels: [], colours: {} });
const named = (each) => `${each.tagName}.${each.className}: ${each.textContent.trim().slice(0, 40)}`;
// Tables scroll in their frames.
const scrolls = (each) => each.closest(".scroll, pre, .bar") !== null && !each.matches(".scroll, pre, .bar");
for (const each of document.body.querySelectorAll("*")) {
  const box = each.getBoundingClientRect();
  if (box.width > 0 && box.right > innerWidth + 0.5 && !scrolls(each)) out.beyond.push(named(each));
}
const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
for (let text = texts.nextNode(); text; text = texts.nextNode()) {
  if (text.data.startsWith("/")) continue;  // a path
  if (text.parentElement.closest("noscript, .bar, .code td, td.code, .subtitle, h1, pre, .facts dd"))
    continue;
  for (const word of text.data.matchAll(/[\\\\p{L}\\\\p{N}_.,:]+/gu)) {
    const range = document.createRange();
    range.setStart(text, word.index);
    range.setEnd(text, word.index + word[0].length);
    const boxes = [...range.getClientRects()].filter((box) => box.width > 0);
    const lines = new Set(boxes.map((box) => Math.round(box.top)));
    if (lines.size > 1) out.broken.push(word[0] + " in " + named(text.parentElement));
  }
}
for (const each of document.querySelectorAll(".card dt, .card dd"))
  if (each.scrollWidth > each.clientWidth) out.tiles.push(named(each));
const seen = (each) => each.getBoundingClientRect().width > 0;
const labels = [...document.querySelectorAll(".bar b")].filter(seen);
for (const label of labels) {
  const [box, part] = [label, label.parentElement].map((each) => each.getBoundingClientRect());
  if (box.left < part.left || box.right > part.right) out.labels.push(label.textContent);
}
out.shown = labels.length;
for (const each of document.querySelectorAll(".owner"))
  out.colours[each.childNodes[0].textContent.trim()] = getComputedStyle(each, "::before").backgroundColor;
parent.postMessage(JSON.stringify(out), "*");
"""


def with_script(page, script):
    """Returns the page's text with one more script, and without its policy, which correctly forbids that."""
    text, policies = re.subn(r"<meta http-equiv=[^>]*>", "", page.read_text(encoding="utf-8"))
    assert policies == 1
    return text.replace("</body>", f"<script>{{{script}}}</script></body>")


def measured(page, folder, width, *flags):
    """Returns the findings of _MEASURE in a frame of `width` pixels. A headless window is at least 500
    pixels wide."""
    script = "setTimeout(() => {" + _MEASURE.replace("\\\\", "\\") + "}, 500);"
    (folder / "inside.html").write_text(with_script(page, script), encoding="utf-8")
    outside = folder / "outside.html"
    outside.write_text(
        f'<body><iframe src="inside.html" style="width: {width}px; height: 4000px; border: 0"></iframe>'
        "<script>"
        'addEventListener("message", (event) => { const out = document.createElement("pre"); out.id = "said";'
        " out.textContent = btoa(unescape(encodeURIComponent(event.data))); document.body.append(out); });"
        "</script></body>",
        encoding="utf-8",
    )
    seen = Browsed(outside, folder, *flags)
    said = re.search(r'<pre id="said">([^<]*)<', seen.dom)
    assert said is not None, seen.console
    return json.loads(base64.b64decode(said.group(1)))
