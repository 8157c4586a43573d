// Shows the query of the SQL page in colours.
"use strict";

const SQL_WORDS =
  "all and as asc between by case cast cross desc distinct else end exists false filter from full group having ilike in " +
  "inner interval is join left like limit not null offset on or order over partition qualify right select then true " +
  "union using values when where with";
const SQL_TOKENS = new RegExp(
  String.raw`(?<c1>--.*|/\*[^]*?(?:\*/|$))|(?<s1>'(?:''|[^'])*'?)|"[^"]*"?|(?<mi>\b\d+(?:\.\d+)?\b)|\b(?<k>` +
    SQL_WORDS.replaceAll(" ", "|") +
    String.raw`)\b`,
  "gi",
);

/** Shows the query in colours behind its box, whose own text is transparent. */
function colourSql(box) {
  const shown = document.createElement("pre");
  shown.className = "code query";
  shown.setAttribute("aria-hidden", "true");
  box.before(shown);
  const colour = () => {
    const parts = [];
    let end = 0;
    for (const found of box.value.matchAll(SQL_TOKENS)) {
      const kind = Object.keys(found.groups).find((each) => found.groups[each]);
      if (!kind) continue; // a quoted name
      const part = document.createElement("span");
      part.className = kind;
      part.textContent = found[0];
      parts.push(box.value.slice(end, found.index), part);
      end = found.index + found[0].length;
    }
    shown.replaceChildren(...parts, `${box.value.slice(end)}\n`);
    shown.scrollTop = box.scrollTop;
  };
  box.addEventListener("input", colour);
  box.addEventListener("scroll", () => (shown.scrollTop = box.scrollTop));
  colour();
}

colourSql(document.getElementById("sql"));
