"""Pages for tests: their elements without a browser, what headless Chromium makes of them, and hostile texts.

Where there is no Chromium, tests that ask for it skip, unless OCTAVO_REQUIRE_CHROMIUM=1, which makes that a
failure.
"""

import html.parser
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


class Elements(html.parser.HTMLParser):
    """Every start tag with its attributes, the text of each table's rows, and the JSON for the script."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.rows, self.data, self._inside, self._text = [], [], "", [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("th", "td"):
            self._text = ""
        elif tag == "tr":
            self.rows.append([])
        elif tag == "script":
            self._inside.append(dict(attrs).get("id"))

    def handle_endtag(self, tag):
        if tag in ("th", "td"):
            self.rows[-1].append(self._text.strip())
        elif tag == "script":
            self._inside.pop()

    def handle_data(self, data):
        self._text += data
        if self._inside == ["data"]:
            self.data += data


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
    """What a browser made of a page: its DOM when all scripts had run, its log, and its requests."""

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
    def title(self):
        return re.search(r"<title>(.*?)</title>", self.dom, re.DOTALL).group(1)
