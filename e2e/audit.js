// Returns a text for each thing that is wrong with the page that is open: with its structure, or with how it is laid out and coloured at this width.
(isFull) => {
  const wrong = [];
  const brief = (el) => el.outerHTML.replace(/\s+/g, " ").slice(0, 160);
  const isSeen = (el) => el.checkVisibility({visibilityProperty: true}) && !el.closest(".hidden, .skip");
  const all = [...document.querySelectorAll("body *")];

  if (isFull) {
    for (const el of document.querySelectorAll("[tabindex]")) if (el.tabIndex > 0) wrong.push("an element has a place of its own in the order of focus: " + brief(el));
    for (const el of document.querySelectorAll("th")) if (!el.scope) wrong.push("a heading of a table has no scope: " + brief(el));

    // The outline of the page.
    const headings = [...document.querySelectorAll("main h1")].filter((h) => h.checkVisibility());
    if (headings.length !== 1) wrong.push(`there are ${headings.length} h1`);
    if (!document.title.includes("· queued")) wrong.push("the title is " + document.title);
    const ids = [...document.querySelectorAll("[id]")].map((el) => el.id);
    for (const id of new Set(ids.filter((id, i) => ids.indexOf(id) !== i))) wrong.push("several elements have the id " + id);

    // Nothing inline, and nothing that leads elsewhere than to this server, under any prefix.
    for (const el of document.querySelectorAll("*")) {
      if (el.hasAttribute("style")) wrong.push("an element has a style of its own: " + brief(el));
      for (const a of el.attributes) if (a.name.startsWith("on")) wrong.push("an element has a handler: " + brief(el));
      for (const name of ["href", "src", "action", "formaction"]) {
        const value = el.getAttribute(name);
        if (value && /^(\/|[a-z]+:)/i.test(value)) wrong.push("a reference is not relative: " + brief(el));
      }
    }
    if (document.querySelector("script:not([src]), style")) wrong.push("the page has a script or a style inside");
  }

  // The page is no wider than its window.
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width + 1) {
    const widest = all.filter((el) => !el.closest(".scroll, nav, pre, .hidden, .skip") && el.getBoundingClientRect().right > width + 1).pop();
    wrong.push(`the page is ${document.documentElement.scrollWidth} px wide, and the window ${width}: ${widest ? brief(widest) : ""}`);
  }

  // The text of drawings is not shrunk until it cannot be read.
  for (const el of document.querySelectorAll("svg text")) {
    if (!isSeen(el)) continue;
    const svg = el.ownerSVGElement;
    const size = parseFloat(getComputedStyle(el).fontSize) * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    if (size < 9.5) { wrong.push(`the text of a drawing is ${size.toFixed(1)} px high: ${brief(svg)}`); break; }
  }

  // Text that is cut off can be read as a title, and ends with dots.
  for (const el of all) {
    if (el.scrollWidth <= el.clientWidth + 1 || el.clientWidth === 0 || el.closest("svg") || el.matches("input, select") || !isSeen(el)) continue;
    const style = getComputedStyle(el);
    if (style.overflowX !== "hidden" && style.overflowX !== "clip") continue;
    if (style.textOverflow !== "ellipsis") wrong.push("something is cut off: " + brief(el));
    else if (!el.title && !el.querySelector("[title]") && !el.matches("summary")) wrong.push("a text is cut off, and has no title: " + brief(el));
  }

  // The next control by Tab, which goes in the order of the document, is to the right, below, or in another column.
  const frame = document.querySelector("dialog[open]") || document; // a dialog keeps the focus
  const controls = [...frame.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']")].filter(isSeen);
  const boxes = controls.map((el) => {
    const r = el.getClientRects()[0];
    const scroller = el.closest("nav, .scroll")?.getBoundingClientRect(); // where it is shown once it has the focus
    const within = (x) => scroller ? Math.min(Math.max(x, scroller.left), scroller.right) : x;
    return r && {left: within(r.left), right: within(r.right), top: r.top, bottom: r.bottom};
  });
  for (let i = 1; i < controls.length; i++) {
    const [a, b] = [boxes[i - 1], boxes[i]];
    if (!a || !b) continue;
    const shared = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    const isBeside = shared > Math.min(a.bottom - a.top, b.bottom - b.top) / 2;
    if (isBeside ? b.left < a.left : b.bottom <= a.top + 1 && b.left < a.right - 1) wrong.push(`Tab goes back on the screen, from ${brief(controls[i - 1])} to ${brief(controls[i])}`);
  }

  // Text can be read, and the edges of fields can be seen: contrast of 4.5, or 3 for large text and edges (WCAG 2.2, 1.4.3 and 1.4.11).
  const context = Object.assign(document.createElement("canvas"), {width: 1, height: 1}).getContext("2d", {willReadFrequently: true});
  const remembered = (f) => {
    const known = new Map();
    return (key) => {
      if (!known.has(key)) known.set(key, f(key));
      return known.get(key);
    };
  };
  const rgba = remembered((colour) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  });
  const over = (top, below, opacity) => {
    const a = top[3] * opacity;
    return [0, 1, 2].map((i) => top[i] * a + below[i] * (1 - a)).concat(1);
  };
  const backdrop = remembered((el) => {
    const colour = rgba(getComputedStyle(el).backgroundColor);
    if (colour[3] === 1) return colour;
    return over(colour, el.parentElement ? backdrop(el.parentElement) : [255, 255, 255, 1], 1);
  });
  const opacity = remembered((el) => parseFloat(getComputedStyle(el).opacity) * (el.parentElement ? opacity(el.parentElement) : 1));
  const luminance = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, share, i) => {
    const v = c[i] / 255;
    return sum + share * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  }, 0);
  const told = new Set();
  const compare = (el, what, colour, below, needed) => {
    const [light, dark] = [luminance(over(rgba(colour), below, opacity(el))), luminance(below)].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    const kind = `${el.tagName} ${el.className} ${needed}`;
    if (ratio >= needed || told.has(kind)) return;
    told.add(kind);
    wrong.push(`the contrast of ${JSON.stringify(what.trim().slice(0, 30))} is ${ratio.toFixed(2)}, less than ${needed}: ${brief(el)}`);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const looked = new Set();
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const el = node.parentElement;
    if (looked.has(el) || !node.textContent.trim()) continue;
    looked.add(el);
    if (!isSeen(el) || el.closest("title, dialog:not([open]), [disabled]")) continue;
    const style = getComputedStyle(el);
    const size = parseFloat(style.fontSize);
    compare(el, node.textContent, el.closest("svg") ? style.fill : style.color, backdrop(el), size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5);
  }
  for (const el of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
    if (!isSeen(el)) continue;
    if (el.placeholder) compare(el, el.placeholder, getComputedStyle(el, "::placeholder").color, backdrop(el), 4.5);
    if (!["checkbox", "radio"].includes(el.type)) compare(el, "the edge of " + el.name, getComputedStyle(el).borderTopColor, backdrop(el.parentElement), 3);
  }
  return wrong;
}
