// The page of the workbench. The server has the draft; this shows it and asks for changes.
// Whatever comes from the server is set as text, never as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const POLL = 2000;
const FRESH = "Open the address that the command printed; it contains the access token.";

const given = () => (location.hash.match(/^#token=(.+)$/) || [])[1];
const token = given() || sessionStorage.getItem("token") || "";
if (given()) {
  sessionStorage.setItem("token", token);
  history.replaceState(null, "", location.pathname); // it does not stay in the address
}

let state = null; // the newest from the server
let reasons = null; // what each sentence does, of one revision
let selected = null; // the class whose sentences are shown
let shownSentence = null; // one that was asked for elsewhere
let explained = null; // {why, url} of the image that is explained
let comparison = null;
let grown = null; // {one, other, items} or {one, other, asking}
let lost = false;
let queue = Promise.resolve(); // edits go one after the other, each with the newest revision
const thumbnails = new Map();

// --- small things -----------------------------------------------------------------------------

function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") node.className = value;
    else if (name === "on") for (const [event, heard] of Object.entries(value)) node.addEventListener(event, heard);
    else if (name === "vars") for (const [key, number] of Object.entries(value)) node.style.setProperty(`--${key}`, number);
    else if (name === "key") node.dataset.key = value;
    else if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== ""));
  return node;
}
const fill = (node, ...children) => node.replaceChildren(...children.filter((child) => child !== null));
const button = (text, key, click, properties = {}) =>
  el("button", { type: "button", key, textContent: text, on: { click }, ...properties });
const percent = (share) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)}%`);
const signed = (number, digits = 1) => {
  const text = Math.abs(number).toFixed(digits);
  return Number(text) === 0 ? "±0" : (number > 0 ? "+" : "−") + text;
};
const points = (before, after) =>
  before === null || after === null ? "" : `${signed(100 * (after - before))} points`;
const tone = (number) => (number > 1e-9 ? "good" : number < -1e-9 ? "bad" : "");
const UNMEASURED = "Needs held-out images: this run was fitted on all of its images.";
const onImages = ({ held_out, images }) => held_out ? `all ${images} held-out images` : count(images, "cross-validated training image");
const isMeasured = () => state.effect.images + state.effect.left_out > 0;
const count = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;

function notice(text, calm = false) {
  const box = $("notice");
  box.classList.toggle("calm", calm);
  if (!text) return fill(box);
  fill(box, el("span", { textContent: text }), button("Close", "close", () => notice(""), { class: "quiet" }));
}

// --- asking the server ------------------------------------------------------------------------

async function ask(path, body, headers = {}) {
  const options = { headers: { Authorization: `Bearer ${token}`, ...headers } };
  if (body !== undefined) {
    options.method = "POST";
    options.body = body instanceof Blob ? body : JSON.stringify(body);
  }
  let reply;
  try {
    reply = await fetch(path, options);
  } catch {
    lost = true;
    const run = state ? state.run : "RUN";
    throw new Error(`Cannot reach the workbench. Your edits are stored; start it again with promptboost workbench ${run}`);
  }
  if (reply.status === 401) throw new Error(`The workbench was restarted, or this address is not valid. ${FRESH}`);
  if (reply.ok && !(reply.headers.get("content-type") || "").includes("json")) return reply.blob();
  const answer = await reply.json().catch(() => ({ error: `The server answered ${reply.status}.` }));
  if (!reply.ok) throw Object.assign(new Error(answer.error), { status: reply.status });
  if (lost) notice("");
  lost = false;
  return answer;
}

/** Ask for a change of the draft, after those that are under way; then show what came of it. */
function change(path, body = {}, then = () => {}) {
  const done = queue.then(async () => {
    document.body.setAttribute("aria-busy", "true");
    try {
      const answer = await ask(path, { revision: state.revision, ...body });
      notice("");
      then(answer);
      show(answer);
      return null;
    } catch (error) {
      if (error.status === 409) {
        show(await ask("/api/state"));
        notice("The draft was edited in another window. This is its current state; repeat your edit if it is still needed.");
      } else notice(error.message);
      return error;
    } finally {
      document.body.removeAttribute("aria-busy");
    }
  });
  queue = done.catch(() => {});
  return done;
}
const edit = (change_, then) => change("/api/edit", { change: change_ }, then);

async function quietly(work) {
  try {
    await work();
  } catch (error) {
    if (error.status !== 409) notice(error.message);
  }
}

async function poll() {
  if (!document.hidden && state) {
    await quietly(async () => {
      const now = await ask("/api/revision");
      if (now.revision !== state.revision) {
        await queue;
        if (now.revision > state.revision) {
          show(await ask("/api/state"));
          notice("The draft was edited in another window.", true);
        }
      }
      if (now.looks !== state.looks) { state.looks = now.looks; showLooks(); }
    });
  }
  setTimeout(poll, POLL);
}

let asked = 0;
function askReasons() {
  clearTimeout(asked);
  asked = setTimeout(() => quietly(async () => {
    const found = await ask("/api/reasons");
    if (found.revision !== state.revision) return;
    reasons = found;
    // In place while a weight has the focus: the order of the sentences stays.
    const editing = document.activeElement && document.activeElement.type === "number";
    if (editing) for (const showReason of sentenceReasons) showReason();
    keepFocus(() => { if (!editing) showSentences(); showHarm(); showMixed(); });
  }), 150);
}

// --- showing ----------------------------------------------------------------------------------

function show(newest) {
  const before = state;
  state = newest;
  if (!before || before.revision !== state.revision) reasons = null;
  const names = state.classes.map((item) => item.name);
  if (!names.includes(selected)) {
    const same = state.classes.find((item) => item.was !== null && item.was === selectedWas);
    selected = same ? same.name : names[0];
  }
  selectedWas = state.classes.find((item) => item.name === selected).was;
  keepFocus(() => {
    showFigures(); showClasses(); showSentences(); showFlips(); showHarm(); showMixed(); showVersions();
  });
  $("wait").hidden = true;
  $("figures").hidden = $("bench").hidden = false;
  if (!reasons) askReasons();
  if (explained && explained.why.revision !== state.revision) explainAgain();
}
let selectedWas = null;

/** The share that is being typed, which outlives a drawing in the middle of it; whether one goes on. */
let typed = null;
let drawing = false;

/** Draw anew, and leave the focus where it was: on the same control, else on the one in its place. */
function keepFocus(draw) {
  const active = document.activeElement;
  const key = active && active.dataset.key;
  const kind = key ? key.split(":", 1)[0] : "";
  const alike = () => [...document.querySelectorAll("[data-key]")].filter((one) => one.dataset.key.split(":", 1)[0] === kind);
  const place = key ? alike().indexOf(active) : -1;
  drawing = true;
  try { draw(); } finally { drawing = false; }
  if (!key || document.activeElement === active && active.isConnected) return;
  const others = alike();
  const same = others.find((one) => one.dataset.key === key) || others[Math.min(place, others.length - 1)];
  (same && !same.disabled ? same : $("sentences")).focus({ preventScroll: true });
}

function showFigures() {
  const { effect, step } = state;
  const shown = isMeasured() ? effect.after : state.fit.accuracy;
  document.title = `${percent(shown)} · ${state.run} · workbench`;
  $("run").textContent = state.run;
  const number = state.classes.reduce((sum, item) => sum + item.sentences.length, 0);
  $("about").textContent = [state.encoder, count(state.classes.length, "class", "classes"), count(number, "sentence")].join(" · ");
  $("accuracy").textContent = percent(shown);
  const delta = (effect.after || 0) - (effect.before || 0);
  $("delta").textContent = state.undo ? points(effect.before, effect.after) || "not measured" : "no edits yet";
  $("delta").className = tone(delta);
  const parts = [`${percent(effect.before)} before`, `${count(effect.changed, "image")} changed`];
  if (effect.changed) parts.push(`${effect.mended} now right`, `${effect.broken} now wrong`);
  if (effect.left_out) parts.push(`${count(effect.left_out, "image")} of dropped classes left out`);
  $("summary").textContent = !isMeasured() ? `${state.fit.images ? `at the fit, on ${onImages(state.fit)}. ` : ""}Edits are not measured: there are no held-out images.`
    : state.undo ? parts.join(" · ") : `on ${count(effect.images, "held-out image")}`;
  const losing = effect.classes.filter((item) => item.after < item.before).sort((a, b) => (a.after - a.before) - (b.after - b.before));
  const paying = losing.slice(0, 6).map((item) => `${item.class} ${signed(100 * (item.after - item.before))}`);
  if (losing.length > 6) paying.push(`${losing.length - 6} more`);
  $("paying").textContent = paying.length ? `classes that lose: ${paying.join(", ")}` : "";
  $("told").textContent = step
    ? `last edit: ${step.message}` + (isMeasured() ? `: ${points(step.before, step.after)}, ${count(step.changed, "image")} changed` : "") : "";
  showLooks();
  $("undo").disabled = !state.undo;
  $("redo").disabled = !state.redo;
  $("save").disabled = !state.undo || state.saved !== null;
  $("save").textContent = state.saved ? `Saved as ${state.saved}` : "Save version…";
}

function showLooks() {
  $("looks").textContent = !isMeasured() ? "" : `Measured ${count(state.looks, "time")} on these ${state.effect.images + state.effect.left_out} held-out images. Another third is reserved for a ` +
    "final evaluation under Versions; the report of the run uses all of them, so its accuracy differs.";
}

function ordered() {
  const items = state.classes.filter((item) => item.name.toLowerCase().includes($("find").value.trim().toLowerCase()));
  const order = $("order").value;
  const moved = (item) => Math.abs((item.after || 0) - (item.before || 0));
  if (order === "worst") items.sort((a, b) => (a.after ?? 2) - (b.after ?? 2));
  if (order === "change") items.sort((a, b) => moved(b) - moved(a));
  return items;
}

function showClasses() {
  $("find-label").classList.toggle("on", state.classes.length > 15);
  fill($("class-list"), ...ordered().map((item) => {
    const delta = (item.after || 0) - (item.before || 0);
    const change_ = item.count && Math.abs(delta) > 1e-9 ? ` ${signed(100 * delta)}` : "";
    const bar = el("span", { class: `bar ${delta > 0 ? "better" : delta < 0 ? "worse" : ""}`, vars: { after: item.after || 0, before: item.before || 0 } }, el("i"), item.count ? el("b") : null);
    const made = button("", `class:${item.name}`, () => select(item.name));
    made.append(
      el("span", { class: "line" }, el("span", { class: "name", textContent: item.name }),
        el("span", { class: tone(delta), textContent: item.count ? `${(100 * item.after).toFixed(0)}%${change_}` : isMeasured() ? "no images" : "" })),
      isMeasured() ? bar : "");
    if (item.name === selected) made.setAttribute("aria-current", "true");
    return el("li", {}, made);
  }));
}

function select(name, sentence = null) {
  selected = name;
  selectedWas = state.classes.find((item) => item.name === name).was;
  shownSentence = sentence;
  keepFocus(() => { showClasses(); showSentences(); });
  const list = $("class-list"), mine = list.querySelector("[aria-current]");
  if (mine) list.scrollTop = Math.max(Math.min(list.scrollTop, mine.offsetTop), mine.offsetTop + mine.offsetHeight - list.clientHeight);
  if (sentence !== null) {
    const row = document.querySelector(".sentence-list .shown");
    if (row) { row.scrollIntoView({ block: "center" }); row.querySelector("input").focus({ preventScroll: true }); }
  } else if (matchMedia("(max-width: 700px)").matches) $("sentences").scrollIntoView();
}

function influence(name, text) {
  if (!reasons) return el("span", { textContent: "…" });
  const counts = (reasons.sentences[name] || {})[text];
  if (counts === undefined || counts && !isMeasured()) return null;
  if (counts === null) return el("span", { textContent: "the only sentence: reword it, or add another one first" });
  const [mended, broken, changed] = counts;
  if (!changed) return el("span", { textContent: "no effect" });
  if (!mended && !broken) return el("span", { textContent: "changes wrong predictions only" });
  const title = `Without this sentence, ${count(mended, "image")} would become right and ${broken} wrong.`;
  return el("span", { class: tone(broken - mended), title },
    `removing it: ${mended} more right, ${broken} more wrong`);
}

/** For each sentence that is shown: draws what would be without it. */
let sentenceReasons = [];

function showSentences() {
  sentenceReasons = [];
  const item = state.classes.find((one) => one.name === selected);
  $("class-title").textContent = item.name;
  const figures = item.count ? `${percent(item.after)} of ${count(item.count, "image")} right` : isMeasured() ? "no held-out images of this class" : "";
  const delta = item.count && item.after !== item.before ? `, ${points(item.before, item.after)}` : "";
  const was = item.was !== null && item.was !== item.name ? ` · ${item.was} in the run` : "";
  $("class-figures").textContent = figures + delta + was;
  $("drop").disabled = state.classes.length < 3;
  const effects = (reasons && reasons.sentences[item.name]) || {};
  const use = (one) => { const counts = effects[one.text]; return counts ? counts[1] - counts[0] : 0; };
  const rows = [...item.sentences].sort((a, b) => use(b) - use(a));
  const isQuiet = (one) => isMeasured() && Boolean(effects[one.text]) && !effects[one.text][2] && !one.pinned && one.text !== shownSentence;
  const quiet = rows.filter(isQuiet);
  $("quiet").hidden = !quiet.length;
  $("quiet-title").textContent = `${count(quiet.length, "sentence")} without effect on the images shown`;
  const row = (one) => {
    const key = `share:${one.text}`;
    const share = el("input", {
      type: "number", min: "0.1", max: "99", step: "any", key,
      value: typed && typed.key === key ? typed.value : (100 * one.share).toFixed(1),
      "aria-label": `Weight of “${one.text}” in ${item.name}, in percent`, disabled: item.sentences.length === 1,
    });
    const commit = () => {
      if (drawing || !typed || typed.key !== key) return;
      typed = null;
      const asked_ = Number(share.value) / 100;
      // What is shown is rounded: to leave it as it is must not be an edit.
      if (Math.abs(asked_ - one.share) > 5e-4) edit({ kind: "weight", class: item.name, sentence: one.text, share: asked_ });
    };
    share.addEventListener("input", () => { typed = { key, value: share.value }; });
    share.addEventListener("keydown", (event) => { if (event.key === "Enter") commit(); });
    share.addEventListener("change", commit);
    share.addEventListener("blur", commit);
    const without = el("span");
    const remove = button("Remove", `remove:${one.text}`, () => edit({ kind: "remove", class: item.name, sentence: one.text }),
      { "aria-label": `Remove “${one.text}”` });
    const showReason = () => {
      fill(without, influence(item.name, one.text));
      const only = reasons !== null && (reasons.sentences[item.name] || {})[one.text] === null;
      if (only && document.activeElement === remove) $("sentences").focus({ preventScroll: true });
      remove.disabled = only;
    };
    showReason();
    sentenceReasons.push(showReason);
    return el("li", { class: one.text === shownSentence ? "shown" : "" },
      el("div", {}, el("span", { class: "unit" }, share, "%"), el("div", { class: "share", vars: { share: one.share } }, el("i"))),
      el("div", {}, el("div", { textContent: one.text }), el("div", { class: "meta" },
        one.was === null && item.was !== null ? el("span", { class: "tag", textContent: "new" }) : null,
        one.pinned ? el("span", { class: "tag", textContent: "added by hand" }) : null,
        one.was !== null && Math.abs(one.was - one.share) > 5e-4 ? el("span", { textContent: `was ${percent(one.was)}` }) : null,
        without)),
      el("div", { class: "tools" },
        button("Reword", `reword:${one.text}`, () => reword(item.name, one.text), { class: "quiet", "aria-label": `Reword “${one.text}”` }),
        remove));
  };
  fill($("sentence-list"), ...rows.filter((one) => !isQuiet(one)).map(row));
  fill($("quiet-list"), ...quiet.map(row));
}

function thumbnail(image, alt) {
  const node = el("img", { alt, class: "thumb", loading: "lazy" });
  const empty = () => node.replaceWith(el("span", { class: "thumb none", title: alt }));
  if (thumbnails.has(image)) node.src = thumbnails.get(image);
  else ask(`/api/thumbnail?image=${encodeURIComponent(image)}`).then((blob) => {
    if (!thumbnails.has(image)) thumbnails.set(image, URL.createObjectURL(blob));
    node.src = thumbnails.get(image);
  }).catch(empty);
  return node;
}

function flipGroups({ flips, changed, mended, broken }, kind, most) {
  const groups = [["wrong", "Now wrong", broken], ["right", "Now right", mended], ["other", "Still wrong", changed - mended - broken]];
  return groups.filter(([, , number]) => number).map(([name, title, number]) => el("div", {},
    el("h3", { class: name === "wrong" ? "bad" : name === "right" ? "good" : "", textContent: `${title}: ${number}` }),
    el("ul", { class: "thumbs" }, ...flips.filter((flip) => flip.becomes === name).slice(0, most).map((flip) => {
      const made = button("", `${kind}:${flip.image}`, () => explain({ image: flip.image }, null), { title: `Explain ${flip.image}` });
      made.append(thumbnail(flip.image, ""), el("span", { class: "soft", textContent: `is ${flip.label}` }), el("br"),
        el("span", { textContent: `${flip.before} → ${flip.after}` }));
      return el("li", {}, made);
    }), number > most ? el("li", { class: "soft small", textContent: `and ${number - most} more` }) : null)));
}

function showFlips() {
  const groups = flipGroups(state.effect, "flip", 12);
  fill($("flip-list"), ...(groups.length ? groups : [el("p", { class: "soft small", textContent: !isMeasured() ? UNMEASURED : state.undo
    ? "No prediction differs from the run." : "Edit a sentence to see the images whose predictions change." })]));
}

function showHarm() {
  const found = [];
  if (reasons) for (const [name, sentences] of Object.entries(reasons.sentences)) {
    for (const [text, counts] of Object.entries(sentences)) {
      if (counts && counts[0] > counts[1]) found.push({ name, text, mended: counts[0], broken: counts[1] });
    }
  }
  found.sort((a, b) => (b.mended - b.broken) - (a.mended - a.broken) || a.broken - b.broken);
  fill($("harm-list"), ...(found.length ? found.slice(0, 8).map((one) => el("li", {},
    el("div", { class: "row" },
      el("div", {}, button(one.text, `harm:${one.name}:${one.text}`, () => select(one.name, one.text), { class: "link" }),
        el("div", { class: "meta" }, el("span", { textContent: one.name }), el("span", { class: "bad", textContent: `removing it: +${one.mended} / −${one.broken}` }))),
      button("Remove", `unharm:${one.name}:${one.text}`, () => edit({ kind: "remove", class: one.name, sentence: one.text }),
        { "aria-label": `Remove “${one.text}” from ${one.name}` }))))
    : [el("li", { class: "soft", textContent: !isMeasured() ? UNMEASURED : reasons ? "None." : "…" })]));
}

function showMixed() {
  const hint = !isMeasured() ? "" : state.model ? `${state.model} can suggest sentences that distinguish two classes.`
    : `For sentences from a language model, start with: promptboost workbench ${state.run} --model NAME --base-url URL`;
  $("mixed-note").textContent = hint;
  const pairs = reasons ? reasons.confusions : [];
  fill($("mixed-list"), ...(pairs.length ? pairs.slice(0, 8).map((pair) => {
    const blamed = pair.sentences[0];
    const mine = grown && grown.one === pair.true && grown.other === pair.answered;
    const grow_ = button(mine && grown.asking ? "Requesting …" : "Suggest", `grow:${pair.true}:${pair.answered}`, () => grow(pair.true, pair.answered),
      { disabled: Boolean(grown && grown.asking), "aria-label": `Suggest sentences that distinguish ${pair.true} from ${pair.answered}`, title: hint });
    return el("li", {}, el("div", { class: "row" },
      el("div", {}, el("div", {}, el("strong", { textContent: pair.true }), " predicted as ", el("strong", { textContent: pair.answered }), `: ${count(pair.count, "image")}`),
        blamed ? el("div", { class: "meta" }, el("span", {}, "main cause: ",
          button(blamed.prompt, `blame:${blamed.class}:${blamed.prompt}`, () => select(blamed.class, blamed.prompt), { class: "link" }))) : null,
        el("div", { class: "minis" }, ...pair.images.map((image) => {
          const why = `Explain ${image}`;
          const made = button("", `mini:${image}`, () => explain({ image }, null), { title: why, "aria-label": why });
          made.append(thumbnail(image, ""));
          return made;
        }))),
      state.model ? grow_ : null), mine && grown.items ? suggestions() : null);
  }) : [el("li", { class: "soft", textContent: !isMeasured() ? UNMEASURED : reasons ? "No confusions." : "…" })]));
}

function suggestions() {
  if (!grown.items.length) return el("p", { class: "suggested soft", textContent: "No new sentences." });
  return el("ul", { class: "suggested" }, ...grown.items.map((item) => el("li", { class: "row" },
    el("div", {}, el("div", { textContent: item.text }), el("div", { class: "meta" }, el("span", { textContent: `for ${item.class}` }),
      el("span", { class: tone(item.after - item.before), textContent: `${points(item.before, item.after)} (${percent(item.after)}): ${item.mended} now right, ${item.broken} now wrong` }))),
    button("Add", `take:${item.text}`, () => edit({ kind: "add", class: item.class, sentence: item.text, share: item.share }, () => {
      grown.items = grown.items.filter((one) => one !== item);
    }), { "aria-label": `Add “${item.text}”` }))));
}

async function grow(one, other) {
  grown = { one, other, asking: true };
  keepFocus(showMixed);
  try {
    const found = await ask("/api/grow", { one, other });
    grown = { one, other, items: found.suggestions };
    state.looks = found.looks;
    showLooks();
  } catch (error) {
    grown = null;
    notice(error.message);
  }
  keepFocus(showMixed);
}

// --- one image ----------------------------------------------------------------------------------

async function explain(message, url) {
  await quietly(async () => {
    const why = await ask("/api/explain", message);
    explained = { why, url };
    showExplanation();
    $("try").scrollIntoView({ block: "nearest" });
  });
}
function explainAgain() {
  const { why, url } = explained;
  const message = why.held_out ? { image: why.id } : { dropped: why.id };
  if (against && state.classes.some((item) => item.name === against)) message.against = against;
  explain(message, url);
}
let against = null;

async function take(file) {
  if (!file) return;
  if (file.size > 32 * 2 ** 20) return notice(`${file.name} is too large: 32 MiB at most.`);
  await quietly(async () => {
    const why = await ask("/api/image", file, { "Content-Type": "application/octet-stream", "X-Name": encodeURIComponent(file.name) });
    if (explained && explained.url) URL.revokeObjectURL(explained.url);
    against = null;
    explained = { why, url: URL.createObjectURL(file) };
    notice("");
    showExplanation();
  });
}

function showExplanation() {
  const { why, url } = explained;
  const terms = why.groups.flatMap((group) => group.contributions || [group]);
  const widest = Math.max(...terms.map((term) => Math.abs(term.value)), 1e-9);
  const row = (term) => el("li", {}, el("span", { class: "num", textContent: signed(term.value, 2) }),
    el("span", { class: "lean", vars: { size: Math.abs(term.value) / widest } }, el("i", { class: term.value > 0 ? "for" : "against" })),
    term.prompt ? button(term.prompt, `why:${term.class}:${term.prompt}`, () => select(term.class, term.prompt), { class: "link" })
      : el("span", { textContent: term.note || `${term.count || 1} more` }));
  const verdict = why.label === null ? null : el("span", { class: why.answer === why.label ? "good" : "bad", textContent: why.answer === why.label ? "right" : `wrong, label ${why.label}` });
  const choice = el("select", { key: "against", "aria-label": "Compare with class" },
    el("option", { value: "", textContent: `rather than ${why.against}` }),
    ...state.classes.filter((item) => item.name !== why.answer && item.name !== why.against).map((item) => el("option", { value: item.name, textContent: item.name })));
  choice.addEventListener("change", () => { against = choice.value; explainAgain(); });
  const head = el("div", { class: "why" },
    url ? el("img", { src: url, alt: "" }) : thumbnail(why.image, ""),
    el("div", {}, el("div", {}, el("strong", { textContent: why.answer }), ` ${percent(why.probability)}`), el("div", { class: "meta" }, verdict),
      choice, el("div", { class: "meta", textContent: `${percent(why.against_probability)}, margin ${why.margin.toFixed(2)}` })));
  const list = el("ol", { "aria-label": `What each sentence adds to the margin of ${why.answer} over ${why.against}` }, ...why.groups.flatMap((group) => [
    el("li", { class: "head" }, el("strong", { textContent: group.title })), ...(group.contributions || [group]).map(row)]));
  $("spoken").textContent = `${why.image}: ${why.answer} rather than ${why.against}, ${percent(why.probability)} against ${percent(why.against_probability)}`;
  keepFocus(() => fill($("explanation"), head, el("p", { class: "meta small", textContent: `${why.image}` }), el("p", { class: "soft small", textContent: why.reading }), list,
    why.changes.length ? el("ul", { class: "told" }, ...why.changes.map((line) => el("li", { textContent: line }))) : null));
}

// --- versions -----------------------------------------------------------------------------------

function showVersions() {
  fill($("version-list"), ...(state.versions.length ? state.versions.map((one) => el("li", {},
    el("strong", { textContent: one.name }), " ", el("span", { class: "soft", textContent:
      [one.date.replace("T", " ").slice(0, 16), "after" in one ? percent(one.after) : "", count(one.changes, "edit"), one.reason].filter(Boolean).join(" · ") }),
    el("div", { class: "tools" },
      button("Refit residual", `refit:${one.name}`, () => measure("refit", one.name), { title: "Fit the residual again with the edited sentences" }),
      isMeasured() ? button("Final evaluation", `final:${one.name}`, () => measure("final", one.name), { title: "Evaluate on the reserved held-out images" }) : "")))
    : [el("li", { class: "soft", textContent: "No saved versions. Each version is a run folder next to this one." })]));
  const names = [["run", `${state.run} (original)`], ...state.versions.map((one) => [one.name, one.name]), ["draft", "current edits"]];
  for (const [id, first] of [["before", "run"], ["after", "draft"]]) {
    const chosen = $(id).value || first;
    fill($(id), ...names.map(([value, textContent]) => el("option", { value, textContent })));
    $(id).value = names.some(([value]) => value === chosen) ? chosen : first;
  }
  if (comparison && comparison.revision !== state.revision && [comparison.before, comparison.after].includes("draft")) {
    comparison = null;
    fill($("comparison"));
  }
}

/** Refit a version, or evaluate it on the reserved images. */
async function measure(path, name) {
  notice(path === "refit" ? `Refitting ${name} …` : `Evaluating ${name} …`, true);
  await quietly(async () => {
    const answer = await ask(`/api/${path}`, { name });
    const where = path === "refit" ? onImages(answer) : `the ${answer.images} reserved images, evaluated ${count(answer.looks, "time")} so far`;
    notice(`${name}: ${percent(answer.accuracy)} on ${where}.`, true);
  });
}

async function compare() {
  await quietly(async () => {
    comparison = await ask("/api/compare", { before: $("before").value, after: $("after").value });
    comparison.revision = state.revision;
    showComparison();
  });
}

function showComparison() {
  const { effect, difference } = comparison;
  const table = el("table", {}, el("thead", {}, el("tr", {}, ...["", "before", "after", ""].map((text) => el("th", { scope: "col", textContent: text })))),
    el("tbody", {}, ...[{ ...effect, class: "all" }, ...effect.classes.filter((item) => item.before !== item.after)].map((item) => el("tr", {},
      el("th", { scope: "row", textContent: item.class }), el("td", { class: "num", textContent: percent(item.before) }),
      el("td", { class: "num", textContent: percent(item.after) }),
      el("td", { class: `num ${tone(item.after - item.before)}`, textContent: points(item.before, item.after) })))));
  const lines = [];
  for (const name of difference.added_classes) lines.push(["good", `+ class ${name}`]);
  for (const name of difference.removed_classes) lines.push(["bad", `− class ${name}`]);
  for (const [name, item] of Object.entries(difference.classes)) {
    for (const [text, share] of Object.entries(item.removed)) lines.push(["bad", `− ${name}: ${text} (${percent(share)})`]);
    for (const [text, share] of Object.entries(item.added)) lines.push(["good", `+ ${name}: ${text} (${percent(share)})`]);
    const moved = Object.entries(item.changed);
    for (const [text, both] of moved.slice(0, 3)) lines.push(["soft", `± ${name}: ${text} (${percent(both.before)} → ${percent(both.after)})`]);
    if (moved.length > 3) lines.push(["soft", `± ${name}: ${moved.length - 3} more weights`]);
  }
  if (!lines.length) lines.push(["soft", "The sentences are the same."]);
  $("spoken").textContent = isMeasured() ? `${percent(effect.before)} before, ${percent(effect.after)} after` : UNMEASURED;
  fill($("comparison"),
    el("p", { textContent: isMeasured() ? `${count(effect.changed, "image")} changed, ${effect.mended} now right, ${effect.broken} now wrong.` : UNMEASURED }),
    el("div", { class: "columns" }, isMeasured() ? el("div", {}, table) : "", el("div", {}, el("h3", { textContent: "Sentences" }),
      el("ul", { class: "diff" }, ...lines.map(([name, textContent]) => el("li", { class: name, textContent })))),
    el("div", {}, ...flipGroups(effect, "compared", 6))));
}

// --- labels of training images --------------------------------------------------------------------

let review = null; // what there is to label

async function askReview(path = "/api/review", body = {}, busy = "Looking at the images …") {
  $("labels-note").textContent = busy;
  $("labels").setAttribute("aria-busy", "true");
  for (const control of $("label-list").querySelectorAll("button, select")) control.disabled = true;
  let failed = "";
  await quietly(async () => {
    try { review = await ask(path, body); } catch (error) { failed = error.message; }
  });
  $("labels").removeAttribute("aria-busy");
  keepFocus(() => showReview(failed));
}
const relabel = (image, label) =>
  askReview("/api/label", { image, label }, label === null ? "Leaving the image out …" : `Labeling as ${label} and refitting …`);

function labelCard(image, note, classes, more) {
  const shown = review.classes.length > 6 ? classes : [...classes, ...review.classes.filter((name) => !classes.includes(name))];
  const others = review.classes.filter((name) => !shown.includes(name));
  const choice = el("select", { key: `other:${image}`, ariaLabel: `Another class of ${image}`, on: { change: (event) => relabel(image, event.target.value) } },
    el("option", { value: "", textContent: "Another class …", disabled: true, selected: true }), ...others.map((name) => el("option", { value: name, textContent: name })));
  return el("li", {}, thumbnail(image, ""),
    el("div", {}, el("p", { class: "small", textContent: image.split("/").slice(-2).join("/") }), el("p", { class: "soft small", textContent: note }),
      el("div", { class: "tools" }, ...shown.map((name) => button(name, `label:${image}:${name}`, () => relabel(image, name), { title: `Label as ${name}` })),
        others.length ? choice : null, ...more)));
}

function showReview(failed = "") {
  if (!review) return ($("labels-note").textContent = failed);
  const { saved, changes, fit, findings, suggestions } = review;
  const before = saved && fit.held_out ? `${percent(state.fit.accuracy)} → ` : "";
  const effect = saved ? `: accuracy ${before}${percent(fit.accuracy)} on ${onImages(fit)}${before ? "" : ", the new ones included"}` : "";
  $("labels-note").textContent = failed || (saved ? `${count(changes, "change")}, refitted as ${saved}${effect}. The edits above are not part of it.`
    : "A click changes a label and refits into a new run. This run stays.");
  $("labels-note").classList.toggle("bad", Boolean(failed));
  const wrong = (findings || []).map((found) => labelCard(found.image, `${found.label}: ${found.why}`,
    found.suggested && found.suggested !== found.label ? [found.suggested] : [], [button("Drop", `drop:${found.image}`, () => relabel(found.image, null))]));
  const next = (suggestions || []).map((one) => labelCard(one.image, `predicted ${one.predicted} (${percent(one.probability)})`, one.top.map((top) => top.class),
    [button("None of these", `skip:${one.image}`, () => relabel(one.image, null), { class: "quiet", title: "Do not suggest it again" })]));
  fill($("label-list"),
    el("h3", { textContent: "Suspicious training images" }),
    findings === null ? button("Search for them", "search", () => askReview("/api/review", { search: true }, "Searching …"))
      : wrong.length ? el("ul", { class: "label-cards" }, ...wrong) : el("p", { class: "soft small", textContent: "None." }),
    suggestions === null ? null : el("h3", { textContent: "Images to label next" }),
    suggestions === null ? null : next.length ? el("ul", { class: "label-cards" }, ...next) : el("p", { class: "soft small", textContent: "None." }));
}

// --- dialogs ------------------------------------------------------------------------------------

/** Ask for some texts; errors are shown in the dialog, which keeps what was typed. */
function dialog(title, fields, ok, work) {
  $("dialog-title").textContent = title;
  $("dialog-ok").textContent = ok;
  $("dialog-error").textContent = "";
  fill($("dialog-fields"), ...fields.map(({ label, name, value = "", rows, required = true }) => el("label", {}, label,
    el(rows ? "textarea" : "input", { name, value, required, ...(rows ? { rows } : {}), maxLength: rows ? 20000 : 2000 }))));
  $("dialog-form").onsubmit = async (event) => {
    event.preventDefault();
    const failed = await work(Object.fromEntries(new FormData($("dialog-form"))));
    if (failed && failed.status !== 409) $("dialog-error").textContent = failed.message;
    if (failed && failed.status !== 409) notice("");
    else $("dialog").close();
  };
  $("dialog").showModal();
}

const reword = (name, text) => dialog(`Reword a sentence of ${name}`, [{ label: "Sentence", name: "to", value: text }], "Reword",
  ({ to }) => edit({ kind: "replace", class: name, sentence: text, to }));
const rename = () => dialog(`Rename ${selected}`, [{ label: "New name", name: "to", value: selected }], "Rename",
  ({ to }) => edit({ kind: "rename-class", class: selected, to }, () => { selected = to; }));
const drop = () => dialog(`Drop ${selected}?`, [], "Drop class", () => edit({ kind: "drop-class", class: selected }));
const addClass = () => dialog("Add a class", [{ label: "Name", name: "name" }, { label: "Sentences, one per line", name: "sentences", rows: 4 }], "Add",
  ({ name, sentences }) => edit({ kind: "add-class", class: name, sentences: sentences.split("\n").map((line) => line.trim()).filter(Boolean) }, () => { selected = name; }));
const save = () => dialog("Save version", [{ label: "Name of the new run folder", name: "name", value: state.next_version },
  { label: "Reason (stored with the version)", name: "reason", required: false }], "Save",
  ({ name, reason }) => change("/api/save", { name, reason }, (answer) => notice(`Saved: ${answer.saved_as}. ${answer.notes.join(" ")}`, true)));

// --- hearing ------------------------------------------------------------------------------------

$("undo").addEventListener("click", () => change("/api/undo"));
$("redo").addEventListener("click", () => change("/api/redo"));
$("save").addEventListener("click", save);
$("rename").addEventListener("click", rename);
$("drop").addEventListener("click", drop);
$("add-class").addEventListener("click", addClass);
$("dialog-cancel").addEventListener("click", () => $("dialog").close());
$("order").addEventListener("change", showClasses);
$("find").addEventListener("input", showClasses);
$("compare").addEventListener("submit", (event) => { event.preventDefault(); compare(); });
$("add").addEventListener("submit", async (event) => {
  event.preventDefault();
  const failed = await edit({ kind: "add", class: selected, sentence: $("add-text").value.trim(), share: Number($("add-share").value) / 100 });
  if (!failed) { $("add-text").value = ""; $("add-text").focus(); }
});
$("file").addEventListener("change", (event) => { take(event.target.files[0]); event.target.value = ""; });
for (const name of ["dragover", "dragleave", "drop"]) {
  addEventListener(name, (event) => {
    event.preventDefault();
    $("drop-zone").classList.toggle("over", name === "dragover");
    if (name === "drop") take([...event.dataTransfer.files][0]);
  });
}
addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "file";
  if (!(event.ctrlKey || event.metaKey) || typing || $("dialog").open || !state) return;
  const key = event.key.toLowerCase();
  if (key === "z" || key === "y") {
    event.preventDefault();
    const back = key === "z" && !event.shiftKey;
    if (back ? state.undo : state.redo) change(back ? "/api/undo" : "/api/redo");
  }
});
addEventListener("hashchange", () => { if (given()) location.reload(); });

(async () => {
  if (!token) return ($("wait").textContent = FRESH);
  try {
    show(await ask("/api/state"));
    if (state.restored && !state.saved) notice(`Restored ${count(state.undo, "unsaved edit")}.`, true);
    poll();
    askReview();
  } catch (error) {
    $("wait").textContent = error.message;
  }
})();
