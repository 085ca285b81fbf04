"""Looks at the documentation in Chromium, as `make docs` has built it.

    python tools/browser.py

Every page, as a phone and as a desktop shows it, in light and dark: no errors, nothing
from other sites, nothing wider than the screen, text that can be told from its background.
The search has to find "halo". Screenshots go to build/screenshots. Playwright drives the
machine's Chromium.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from environments import FOLDER, ROOT, make

BUILT = ROOT / "build" / "docs"
SHOTS = ROOT / "build" / "screenshots"
#: Width and height, in CSS's pixels.
SCREENS = {"phone": (390, 844), "desktop": (1280, 900)}
#: The least contrast between text and its background (WCAG 2.2, level AA).
CONTRAST = 4.5

#: Elements that are wider than the screen and do not scroll in a box of their own. Boxes
#: around the whole article don't count: with these, all of a page scrolls.
TOO_WIDE = """() => {
    const width = document.documentElement.clientWidth;
    const scrolls = e => {
        for (; e.tagName !== "ARTICLE"; e = e.parentElement)
            if (["auto", "scroll"].includes(getComputedStyle(e).overflowX)) return true;
        return false;
    };
    return [...document.querySelectorAll("article *")]
        .filter(e => e.getBoundingClientRect().right > width + 1 && !scrolls(e))
        .map(e => e.tagName + " " + e.textContent.trim().slice(0, 40)).slice(0, 3);
}"""

#: The least contrast of a page's paragraphs and headings.
LEAST_CONTRAST = """() => {
    const parse = c => c.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
        .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = e => {
        for (; e; e = e.parentElement) {
            const c = parse(getComputedStyle(e).backgroundColor);
            if (c.length < 4 || c[3] === 1) return c;
        }
        return [255, 255, 255];
    };
    let least = [21, ""];
    for (const e of document.querySelectorAll("article :is(p, h1, h2, td)")) {
        const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))];
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (contrast < least[0]) least = [contrast, e.textContent.slice(0, 40)];
    }
    return least;
}"""

BACKGROUND = "() => getComputedStyle(document.body).backgroundColor"


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The built pages on a port of this machine: the search needs more than files."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(BUILT))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def look(chromium: str) -> list[str]:
    """Descriptions of all problems."""
    from playwright.sync_api import TimeoutError, sync_playwright

    wrong: list[str] = []
    backgrounds: dict[str, str] = {}
    pages = sorted(path.relative_to(BUILT).as_posix() for path in BUILT.glob("*.html"))
    with served() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        for screen, (width, height) in SCREENS.items():
            for scheme in "light", "dark":
                context = browser.new_context(
                    viewport={"width": width, "height": height}, color_scheme=scheme
                )
                tab = context.new_page()
                where = f"{screen}, {scheme}"

                def note(problem: object, where: str = where) -> None:
                    wrong.append(f"{where}: {problem}")

                def refuse(route: Any, note: Callable[[object], None] = note) -> None:
                    note(f"{route.request.url} is loaded from elsewhere")
                    route.abort()

                context.route(lambda url: not url.startswith(address), refuse)

                def check(response: Any, note: Callable[[object], None] = note) -> None:
                    if response.status >= 400:
                        note(f"{response.status} for {response.url}")

                tab.on("pageerror", note)
                tab.on("response", check)
                for name in pages:
                    tab.goto(f"{address}/{name}")
                    tab.wait_for_load_state("load")
                    for element in tab.evaluate(TOO_WIDE):
                        note(f"{name} is too wide: {element}")
                    contrast, text = tab.evaluate(LEAST_CONTRAST)
                    if contrast < CONTRAST:
                        note(f"{name}: contrast {contrast:.1f} of {text!r}")
                    stem = name.removesuffix(".html")
                    tab.screenshot(path=SHOTS / f"{stem}-{screen}-{scheme}.png")
                backgrounds[where] = tab.evaluate(BACKGROUND)
                tab.goto(f"{address}/search.html?q=halo")
                # The list grows while the pages are looked at.
                with contextlib.suppress(TimeoutError):
                    tab.wait_for_selector(
                        "#search-results a[href*='halo.html']", timeout=20_000
                    )
                links = tab.eval_on_selector_all(
                    "#search-results li a", "links => links.map(link => link.href)"
                )
                if not any("/halo.html" in link for link in links):
                    note(f"a search for halo finds {links}")
                tab.screenshot(path=SHOTS / f"searched-{screen}-{scheme}.png")
                context.close()
        browser.close()
    for screen in SCREENS:
        if backgrounds[f"{screen}, light"] == backgrounds[f"{screen}, dark"]:
            wrong.append(f"{screen}: light and dark look the same")
    print(f"looked at {len(pages)} pages on {len(SCREENS)} screens, in light and dark")
    return wrong


def main() -> int:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("no Chromium on the path (Debian has it as the package chromium)")
        return 1
    if not (BUILT / "index.html").exists():
        print("nothing built yet: make docs")
        return 1
    path = FOLDER / "browser"
    make(path, ("playwright==1.55.0",), sys.executable)
    python = path / "bin" / "python"
    if Path(sys.prefix) != path:
        return subprocess.run([python, __file__]).returncode
    shutil.rmtree(SHOTS, ignore_errors=True)
    SHOTS.mkdir(parents=True)
    wrong = look(chromium)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
