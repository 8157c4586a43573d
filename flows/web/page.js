// Makes the pages quicker to use. Without it they work all the same: each state of a page is a link of the server.
"use strict";

const DEBOUNCE_MILLISECONDS = 150;
const COPIED_MILLISECONDS = 1500;
const UNFINISHED = /(^|\s)(-?[a-z]+:|"[^"]*)$/; // the server would refuse the last term
const OF_KNOWN_VALUES = /(^|\s)-?(lang|branch|case):\S*$/; // and this one, unless it is complete
const typing = (target) => target.matches("input:not([type=checkbox]), select, textarea");

/** The page of the server at `target`, or null if a newer request has taken its place. */
const pageAt = (() => {
  let asking = null;
  return async (target) => {
    asking?.abort();
    asking = new AbortController();
    try {
      const answer = await fetch(target, { signal: asking.signal });
      if (answer.redirected) {
        location.assign(target); // the token has expired: the sign-in page leads back
        return null;
      }
      return new DOMParser().parseFromString(await answer.text(), "text/html");
    } catch (error) {
      if (error.name === "AbortError") return null;
      throw error;
    }
  };
})();

const MAX_RECENT = 8;

/** The searches of this browser, newest first, as [query, link]; only the browser keeps them. */
const recent = {
  isEnding: false, // signing out leaves the page, which would remember its search again
  read() {
    try {
      const found = JSON.parse(localStorage.getItem("driftline.recent"));
      return Array.isArray(found) ? found.filter((each) => Array.isArray(each)) : [];
    } catch {
      return []; // storage is off, or not ours
    }
  },
  write(searches) {
    try {
      localStorage.setItem("driftline.recent", JSON.stringify(searches.slice(0, MAX_RECENT)));
    } catch {
      // storage is off, or full: nothing is remembered
    }
    this.show();
  },
  /** Remembers the search that the page shows, unless nothing was found. */
  add() {
    const query = new URLSearchParams(location.search).get("q");
    if (this.isEnding || !query || !document.querySelector("main article")) return;
    this.write([[query, `/${location.search}`], ...this.read().filter(([each]) => each !== query)]);
  },
  /** Lists them on the home page. */
  show() {
    const section = document.getElementById("recent");
    if (!section) return;
    const searches = this.read();
    section.hidden = !searches.length;
    const items = searches.map(([query, link]) => {
      const [item, anchor] = ["li", "a"].map((name) => document.createElement(name));
      Object.assign(anchor, { href: link, textContent: query });
      item.append(anchor);
      return item;
    });
    section.querySelector("ul").replaceChildren(...items);
  },
};
document.addEventListener("click", (event) => event.target.closest("#recent button") && recent.write([]));
document.addEventListener("submit", (event) => {
  if (!event.target.matches('[action="/sign-in/out"]')) return;
  recent.isEnding = true;
  recent.write([]);
});

const QUIET_MILLISECONDS = 1000;
const SLOW_MILLISECONDS = 400;

/** Shows results while typing. What is typed without a pause, and each filter, has an entry of the history. */
function searchAsYouType(form, box) {
  let timer = 0;
  let quiet = 0;
  let isTyped = false; // into the current entry, which the next results replace
  const asked = () => (box.value.trim() ? `/?${new URLSearchParams(new FormData(form))}` : "/");
  const record = (target, isTyping) => {
    if (target === location.pathname + location.search) return;
    history[isTyping && isTyped ? "replaceState" : "pushState"](null, "", target);
    isTyped = isTyping;
    clearTimeout(quiet);
    quiet = setTimeout(() => (isTyped = false), QUIET_MILLISECONDS);
  };
  const show = async (target, { isTyping = false, isBack = false } = {}) => {
    const main = document.querySelector("main");
    const count = document.getElementById("count");
    const slow = setTimeout(() => {
      main.ariaBusy = "true";
      count.textContent = "Searching…";
    }, SLOW_MILLISECONDS);
    try {
      const page = await pageAt(target);
      if (!page) return; // the newer request shows its results
      main.ariaBusy = null;
      if (!page.querySelector("main")) throw new Error("no page"); // such as too many requests
      const wrong = page.querySelector("main > .error"); // the results stay
      count.classList.toggle("bad", Boolean(wrong));
      count.textContent = (wrong ?? page.getElementById("count"))?.textContent ?? "";
      if (wrong) return;
      const isOpen = main.querySelector("details.facets")?.open ?? !narrow.matches;
      page.querySelector("details.facets")?.toggleAttribute("open", isOpen);
      const focused = main.contains(document.activeElement) ? document.activeElement.id : "";
      if (target === "/" && !isBack) recent.add();
      main.replaceWith(page.querySelector("main"));
      recent.show();
      box.dispatchEvent(new Event("terms"));
      if (focused) (document.getElementById(focused) ?? box).focus();
      document.title = page.title;
      if (!isBack) return void record(target, isTyping);
      for (const name of ["q", "mode"]) form.elements[name].value = page.getElementById(name).value;
    } catch {
      main.ariaBusy = null;
      count.textContent = "The server does not answer. Search again in a moment.";
    } finally {
      clearTimeout(slow);
    }
  };
  box.addEventListener("input", () => {
    clearTimeout(timer);
    const isOffered = document.querySelector("#offers:not([hidden])") && OF_KNOWN_VALUES.test(box.value);
    if (!isOffered && !UNFINISHED.test(box.value)) timer = setTimeout(() => show(asked(), { isTyping: true }), DEBOUNCE_MILLISECONDS);
  });
  addEventListener("popstate", () => {
    clearTimeout(timer);
    isTyped = false;
    show(location.pathname + location.search, { isBack: true });
  });
  document.addEventListener("change", (event) => {
    if (event.target.form === form && event.target !== box) show(asked());
  });
}

const MAX_OFFERS = 8;
const MIN_LETTERS = 2;
const EXCLUDES = /^(file|lang|repo):/;

/** Offers to complete the term before the cursor, by a field or a value that the server lists in the page. */
function completeTerms(box) {
  const list = document.createElement("ul");
  list.id = "offers";
  list.role = "listbox";
  list.ariaLabel = "Terms";
  box.after(list);
  box.removeAttribute("list");
  box.role = "combobox";
  box.ariaAutoComplete = "list";
  box.setAttribute("aria-controls", list.id);

  const typed = () => /\S*$/.exec(box.value.slice(0, box.selectionStart))[0];
  const matching = () => {
    const [, sign, field, part] = /^(-?)([a-z]*:|)(.*)$/.exec(typed().toLowerCase());
    if (!field && part.length < MIN_LETTERS) return [];
    const holds = ({ value }) => {
      const rest = value.toLowerCase().slice(field.length);
      if (sign && !EXCLUDES.test(value)) return false;
      if (!field) return rest.endsWith(":") && rest.startsWith(part);
      return value.startsWith(field) && rest && rest !== part && rest.includes(part);
    };
    const found = [...document.querySelectorAll("#terms option")].filter(holds).slice(0, MAX_OFFERS);
    return found.map(({ value, label }) => ({ term: sign + value, about: label === value ? "" : label }));
  };
  const chosen = () => [...list.children].findIndex((each) => each.ariaSelected === "true");
  const choose = (at) => {
    [...list.children].forEach((each, n) => (each.ariaSelected = String(n === at)));
    box.setAttribute("aria-activedescendant", list.children[at]?.id ?? "");
  };
  const offer = (terms) => {
    const made = terms.map(({ term, about }, n) => {
      const [item, written, explanation] = ["li", "code", "span"].map((name) => document.createElement(name));
      Object.assign(item, { id: `offer${n}`, role: "option" });
      [written.textContent, explanation.textContent] = [term, about];
      item.append(written, " ", explanation);
      return item;
    });
    list.replaceChildren(...made);
    list.hidden = !made.length;
    box.ariaExpanded = String(!list.hidden);
    choose(-1);
  };
  const accept = (item) => {
    const term = item.firstChild.textContent;
    const end = box.selectionStart;
    box.setRangeText(term.endsWith(":") ? term : `${term} `, end - typed().length, end, "end");
    box.dispatchEvent(new Event("input"));
  };
  offer([]);
  box.addEventListener("input", () => offer(matching()));
  box.addEventListener("blur", () => offer([]));
  box.addEventListener("terms", () => {
    if (!list.hidden && chosen() < 0) offer(matching()); // from the page of the latest results
  });
  box.addEventListener("keydown", (event) => {
    if (list.hidden || event.isComposing) return;
    const at = chosen();
    if (event.key === "ArrowDown" && at + 1 < list.children.length) choose(at + 1);
    else if (event.key === "ArrowUp" && at >= 0) choose(at - 1);
    else if (event.key === "Enter" && at >= 0) accept(list.children[at]);
    else if (event.key === "Escape") offer([]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  list.addEventListener("mousedown", (event) => event.preventDefault()); // the box keeps the focus
  list.addEventListener("click", (event) => accept(event.target.closest("li")));
}

function moveAmongResults(box) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const results = [...document.querySelectorAll("article h3 > a:first-child, .entries a, #references .lines a")];
    const at = results.indexOf(document.activeElement);
    const isTyping = typing(event.target);
    const isDown = event.key === "ArrowDown" ? at >= 0 || event.target === box : event.key === "j" && !isTyping;
    const isUp = event.key === "ArrowUp" || (event.key === "k" && !isTyping);
    if (event.key === "/" && !isTyping) {
      event.preventDefault();
      box.select();
    } else if (event.key === "Escape" && event.target === box) {
      event.preventDefault(); // browsers would empty the box
      box.blur();
      results[0]?.focus();
    } else if (event.key === "Escape") {
      box.select();
    } else if (isDown && at + 1 < results.length) {
      event.preventDefault();
      results[at + 1].focus();
    } else if (isUp && at >= 0) {
      event.preventDefault();
      (results[at - 1] ?? box).focus();
    }
  });
}

/** Shows the block of laid-out prose that has the linked line; its blocks have the numbers of their first lines. */
function followBlocks(prose) {
  const fromLink = () => {
    const number = Number(/^#L([1-9]\d*)/.exec(location.hash)?.[1]);
    const block = [...prose.querySelectorAll("[id^='L']")].findLast((each) => Number(each.id.slice(1)) <= number);
    prose.querySelector(".best")?.classList.remove("best");
    if (number > 1) block?.classList.add("best");
    block?.scrollIntoView({ block: "center" });
  };
  addEventListener("hashchange", fromLink);
  fromLink();
}

const linkedLine = (link) => Number(link.hash.slice("#L".length));

/** The link of the outline to the last definition that begins at line `number` or before. */
const definitionAt = (number) =>
  [...document.querySelectorAll('.names a[href^="#"]')].findLast((link) => linkedLine(link) <= number);

/** The part of a link that leads to lines up to `last`, as the host of `link` writes it. */
function rangeOf({ hash, pathname }, last) {
  if (hash.startsWith("#lines-")) return `${hash}:${last}`;
  if (hash.startsWith("#L")) return pathname.includes("/-/") ? `${hash}-${last}` : `${hash}-L${last}`;
  return /^#\d+$/.test(hash) ? `${hash}-${last}` : hash;
}

function followLines(code) {
  const asked = () => new URLSearchParams(location.search).get("line");
  let first = Number(asked() ?? 1);
  const linksTo = (last) => {
    for (const id of ["own", "remote", "blame"]) {
      const link = document.getElementById(id);
      if (link && last > first) link.hash = rangeOf(link, last);
    }
    const own = document.getElementById("own");
    own.textContent = last > first ? `Lines ${first}-${last}` : `Line ${first}`;
  };
  const mark = (last) => {
    for (const line of document.querySelectorAll(".code [id^='L']")) {
      const number = Number(line.id.slice(1));
      line.classList.toggle("best", first <= number && number <= last);
    }
    document.querySelector(".names .here")?.classList.remove("here");
    definitionAt(first)?.parentElement.classList.add("here");
  };
  const select = async (from, to = from) => {
    const [low, last] = from <= to ? [from, to] : [to, from];
    const target = new URL(location.href);
    target.searchParams.set("line", low);
    target.hash = `L${low}` + (last > low ? `-L${last}` : "");
    if (!document.getElementById(`L${low}`)) {
      location.assign(target); // a long document is shown in parts
      return;
    }
    first = low;
    mark(last);
    const view = document.getElementById("view");
    if (view) view.hash = `L${low}`;
    history.replaceState(null, "", target);
    const page = await pageAt(target);
    const found = page?.getElementById("similar");
    if (!found) return;
    document.getElementById("similar").replaceWith(found);
    for (const id of ["remote", "own", "blame"]) {
      const link = page.getElementById(id);
      if (link) document.getElementById(id)?.replaceWith(link);
    }
    linksTo(last);
  };
  code.addEventListener("click", (event) => {
    if (!event.target.matches(".lines > div > a") || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const number = Number(event.target.textContent);
    if (event.shiftKey) select(first, number);
    else select(number);
  });
  const fromLink = () => {
    const found = /^#L([1-9]\d*)(?:-L?([1-9]\d*))?$/.exec(location.hash);
    if (!found) return;
    const [number, last] = [Number(found[1]), Number(found[2] ?? found[1])];
    if (found[1] === asked() && last === number) return;
    select(number, last);
    document.getElementById(`L${Math.min(number, last)}`)?.scrollIntoView({ block: "center" });
  };
  addEventListener("hashchange", fromLink);
  fromLink();
}

function copyLinks() {
  document.documentElement.classList.add("copies");
  document.addEventListener("click", async ({ target }) => {
    if (!target.matches("button.copy")) return;
    const before = target.textContent;
    const own = () => target.closest("h3")?.querySelector("a") ?? document.getElementById("own");
    const link = target.matches(".own") ? own() : target.previousElementSibling;
    await navigator.clipboard.writeText(link.href);
    target.textContent = "Copied";
    setTimeout(() => (target.textContent = before), COPIED_MILLISECONDS);
  });
}

const NAME = /^[\p{L}_$][\p{L}\p{N}_$]*$/u;
const NO_NAME = /^([ckms]|bp)/; // the classes of comments, keywords, numbers, strings, and `self`

/** The range of the name in code under the mouse, or null. */
function nameAt({ clientX, clientY }) {
  const at = document.caretPositionFromPoint?.(clientX, clientY);
  const range = at ? null : document.caretRangeFromPoint?.(clientX, clientY); // Safari
  const [node, offset] = at ? [at.offsetNode, at.offset] : [range?.startContainer, range?.startOffset];
  if (node?.nodeType !== Node.TEXT_NODE || NO_NAME.test(node.parentElement.className)) return null;
  const begin = offset - /[\p{L}\p{N}_$]*$/u.exec(node.data.slice(0, offset))[0].length;
  const end = offset + /^[\p{L}\p{N}_$]*/u.exec(node.data.slice(offset))[0].length;
  const found = document.createRange();
  found.setStart(node, begin);
  found.setEnd(node, end);
  const { left, right } = found.getBoundingClientRect();
  return NAME.test(found.toString()) && left <= clientX && clientX <= right ? found : null;
}

/** Shows the definitions and uses of a name below the document. */
function showReferences(code) {
  const close = () => document.querySelector("#references")?.remove();
  const open = async (name, byKey) => {
    const query = new URLSearchParams({ name });
    const branch = new URLSearchParams(location.search).get("branch");
    if (branch) query.set("branch", branch);
    const found = (await pageAt(`/references?${query}`))?.getElementById("references");
    if (!found || !(byKey || found.querySelector(".lines"))) return;
    const button = document.createElement("button");
    Object.assign(button, { type: "button", className: "close", ariaLabel: "Close the references", textContent: "×" });
    button.addEventListener("click", close);
    found.prepend(button);
    close();
    document.body.append(found);
    if (byKey) found.focus();
  };
  code.addEventListener("click", (event) => {
    const name = document.getSelection().isCollapsed && event.target.closest("code") ? nameAt(event) : null;
    if (name) open(name.toString(), false);
  });
  code.addEventListener("mousemove", (event) => {
    if (!globalThis.Highlight) return;
    const name = event.target.closest("code") ? nameAt(event) : null;
    CSS.highlights.set("name", new Highlight(...(name ? [name] : [])));
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (link.dataset.name) {
      event.preventDefault();
      open(link.dataset.name, true);
    } else if (link.closest("#references") && link.pathname === location.pathname) {
      event.preventDefault();
      location.hash = link.hash;
    }
  });
  document.addEventListener(
    "keydown",
    (event) => {
      if (event.key !== "Escape" || !document.querySelector("#references")) return;
      event.stopImmediatePropagation();
      close();
    },
    true,
  );
}

/** Offers the definitions and the uses of a name that is selected in code. */
function jumpFromNames() {
  const bar = document.createElement("nav");
  bar.id = "jump";
  bar.ariaLabel = "The selected name";
  const link = (field, text) => {
    const made = document.createElement("a");
    made.textContent = text;
    made.dataset.field = field;
    return made;
  };
  bar.append(link("def", "Definition"), link("uses", "Uses"));
  document.addEventListener("selectionchange", () => {
    const selection = document.getSelection();
    const name = selection.toString().trim();
    const isIn = selection.anchorNode?.parentElement?.closest(".lines code");
    if (!isIn || !NAME.test(name)) return void bar.remove();
    const branch = new URLSearchParams(location.search).get("branch");
    for (const each of bar.children) {
      const target = new URLSearchParams({ q: `${each.dataset.field}:${name}` });
      if (branch) target.set("branch", branch);
      if (each.dataset.field === "uses" && document.getElementById("names")) each.dataset.name = name;
      if (each.dataset.field === "def") target.set("jump", "true");
      each.href = `/?${target}`;
    }
    if (!bar.isConnected) document.body.append(bar);
  });
}

/** The list of a folder's page, with buttons that unfold its folders. */
async function entriesOf(folder) {
  const answer = await fetch(folder);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const list = page.querySelector(".entries");
  if (!answer.ok || !list) return void location.assign(folder);
  const up = page.querySelector(".crumbs li:last-child a")?.getAttribute("href");
  return { list, up: up === "/d/" ? null : up };
}

/** Lets folders unfold where they are listed, and the list beside a document grow upwards. */
function unfoldFolders(root) {
  const isBeside = root.matches(".tree");
  const adopt = (list) => {
    if (isBeside) list.querySelectorAll(".files, li:not(:has(a))").forEach((each) => each.remove());
    for (const link of list.querySelectorAll(":scope > li > a[href*='/']")) {
      if (!link.pathname.endsWith("/") || link.matches(".up")) continue;
      const button = document.createElement("button");
      Object.assign(button, { type: "button", className: "fold", ariaExpanded: "false", ariaLabel: `Unfold ${link.textContent}` });
      link.before(button);
    }
    return list;
  };
  root.addEventListener("click", async (event) => {
    const button = event.target.closest(".fold");
    const up = event.target.closest(".up");
    if (up && !(event.ctrlKey || event.metaKey || event.shiftKey)) {
      event.preventDefault();
      const above = await entriesOf(up.href);
      if (!above) return;
      const inner = document.createElement("ul");
      inner.append(...[...root.children].filter((item) => !item.contains(up)));
      adopt(above.list);
      const folder = [...above.list.children].find((item) => item.querySelector("a")?.getAttribute("href") === root.dataset.folder);
      folder?.append(inner);
      folder?.querySelector(".fold").setAttribute("aria-expanded", "true");
      root.dataset.folder = up.getAttribute("href");
      if (above.up) up.href = above.up;
      root.replaceChildren(...(above.up ? [up.parentElement] : []), ...above.list.children);
      folder?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
    } else if (button) {
      const item = button.parentElement;
      const isOpen = button.ariaExpanded === "true";
      button.ariaExpanded = String(!isOpen);
      if (item.querySelector("ul")) return void (item.querySelector("ul").hidden = isOpen);
      const found = await entriesOf(item.querySelector("a").href);
      if (!found) return;
      const inner = document.createElement("ul");
      inner.append(...adopt(found.list).children);
      item.append(inner);
    }
  });
  root.classList.add("unfolds");
  adopt(root);
}

/** A dialog, which `t` opens to find a file by name, `l` to go to a line, and `?` to explain queries and keys. */
function openByKey() {
  const dialog = document.createElement("dialog");
  dialog.id = "go";
  document.body.append(dialog);
  const source = document.querySelector("[data-source]")?.dataset.source;
  const branch = new URLSearchParams(location.search).get("branch");
  const ask = (label, type, found) => {
    const [form, field] = ["form", "input"].map((name) => document.createElement(name));
    form.method = "dialog";
    Object.assign(field, { type, ariaLabel: label, placeholder: label, autocomplete: "off", min: 1 });
    form.append(field);
    dialog.replaceChildren(form, ...found);
    dialog.showModal();
    return [form, field];
  };
  const findFile = () => {
    const list = document.createElement("ul");
    list.className = "entries";
    const [form, field] = ask("Find a file by letters of its path", "search", [list]);
    let timer = 0;
    const show = async () => {
      const query = new URLSearchParams({ q: field.value, ...(source && { source }), ...(branch && { branch }) });
      const found = await pageAt(`/files?${query}`);
      if (found) list.replaceChildren(...found.querySelectorAll(".entries li"));
    };
    field.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(show, DEBOUNCE_MILLISECONDS);
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      list.querySelector("a")?.click();
    });
  };
  const goToLine = () => {
    const [form, field] = ask("Go to line", "number", []);
    form.addEventListener("submit", () => (location.hash = `#L${Number(field.value) || 1}`));
  };
  const help = async () => {
    const found = (await pageAt("/"))?.querySelector(".syntax");
    if (!found) return;
    found.tabIndex = 0; // it scrolls
    dialog.replaceChildren(found);
    dialog.showModal();
  };
  document.addEventListener("click", (event) => {
    if (!event.target.closest('[href="/#syntax"]') || document.getElementById("syntax")) return;
    event.preventDefault();
    help();
  });
  dialog.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && dialog.querySelector("ul")) {
      event.preventDefault();
      const stops = [dialog.querySelector("input"), ...dialog.querySelectorAll("a")];
      stops[stops.indexOf(document.activeElement) + step]?.focus();
    }
    event.stopPropagation(); // keys of the page, such as Esc
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (event.key === "t") findFile();
    else if (event.key === "?") help();
    else if (event.key === "l" && document.querySelector(".document")) goToLine();
    else if (event.key === "y") (document.querySelector("#remote + .copy") ?? document.querySelector(".path .copy"))?.click();
    else return;
    event.preventDefault();
  });
}

/** Lists beside the content are open where there is room for them. */
function foldWhereNarrow() {
  const fold = () => {
    for (const each of document.querySelectorAll("details.beside")) each.open = !narrow.matches;
  };
  narrow.addEventListener("change", fold);
  if (narrow.matches) fold();
}

const narrow = matchMedia("(max-width: 61.99rem)");
foldWhereNarrow();
document.querySelector(".tree [aria-current]")?.scrollIntoView({ block: "nearest" });
for (const list of document.querySelectorAll(".tree, main > .entries")) unfoldFolders(list);
openByKey();
const box = document.getElementById("q");
if (box) {
  if (box.form.id === "search") {
    completeTerms(box);
    searchAsYouType(box.form, box);
    addEventListener("pagehide", () => recent.add());
    recent.show();
  }
  moveAmongResults(box);
}
jumpFromNames();
const lines = document.querySelector(".document .found > .code");
if (lines) followLines(lines);
const prose = document.querySelector(".laid-out");
if (prose) followBlocks(prose);
if (lines && document.getElementById("names")) showReferences(lines);
if (navigator.clipboard) copyLinks(); // only on https and this machine
