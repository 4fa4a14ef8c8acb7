// What a page does by itself or changes: the viewer's own time, countdowns, live
// updates, and the few mutations, each behind a confirmation.
document.documentElement.classList.add("scripted");

const csrf = () => document.querySelector("meta[name=csrf]")?.content ?? "";
const policy = self.trustedTypes?.createPolicy("gate", { createHTML: (text) => text }) ?? { createHTML: (text) => text };

// say tells something in the corner, to eyes and to screen readers; what must not be
// missed stays.
function say(text, stays) {
  const box = document.getElementById("said");
  const line = document.createElement("p");
  line.textContent = text;
  box.append(line);
  if (!stays) return setTimeout(() => line.remove(), 8000);
  const read = Object.assign(document.createElement("button"), { type: "button", className: "quiet", textContent: "Read" });
  read.onclick = () => line.remove();
  line.append(" ", read);
}

// send calls an endpoint of the gate through this origin.
async function send(path, body, method = "POST") {
  const answer = await fetch("/api/gate" + path, {
    method,
    headers: { "X-CSRF-Token": csrf(), ...(body && { "Content-Type": "application/json" }) },
    body: body && JSON.stringify(body),
  });
  const value = await answer.json().catch(() => ({ message: "The answer could not be read." }));
  if (answer.status === 401) value.message = "You were logged out, and this was not sent. Reload the page to log in."; // what was typed stays
  return { ok: answer.ok, status: answer.status, value };
}

// Times are shown in the viewer's zone, or in UTC where the session says so; the title keeps UTC.
const timeZone = document.documentElement.dataset.times === "utc" ? "UTC" : undefined;
const clock = { hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZoneName: "short", timeZone };
const zoneClock = new Intl.DateTimeFormat(undefined, clock);
const zoneHour = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", ...clock });
const zone = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", second: "2-digit", ...clock });
const zones = { hour: zoneHour, clock: zoneClock };
function localTimes(root) {
  for (const element of root.querySelectorAll("time[datetime], option[data-time]")) {
    element.textContent = (zones[element.className] ?? zone).format(new Date(element.dateTime ?? element.value));
  }
}

function lasting(seconds) {
  if (seconds < 60) return seconds + " s";
  if (seconds < 7200) return Math.floor(seconds / 60) + " min " + (seconds % 60) + " s";
  return Math.floor(seconds / 3600) + " h " + (Math.floor(seconds / 60) % 60) + " min";
}

// How long is left, the server's clock says: that of this machine may be wrong.
let offset = 0;
function setClock(root) {
  const now = root.querySelector("main[data-now]")?.dataset.now;
  if (now) offset = new Date(now) - performance.now();
}

// How long ago something was, in the words of the server (ago in words.go).
function agoWords(seconds) {
  if (seconds < 2) return "just now";
  if (seconds < 120) return seconds + " s ago";
  if (seconds < 7200) return Math.floor(seconds / 60) + " min ago";
  if (seconds < 172800) return Math.floor(seconds / 3600) + " h ago";
  return Math.floor(seconds / 86400) + " days ago";
}

function countdowns() {
  for (const element of document.querySelectorAll("[data-ago]")) {
    element.textContent = agoWords(Math.floor((offset + performance.now() - new Date(element.dataset.ago)) / 1000));
  }
  for (const element of document.querySelectorAll("[data-countdown]")) {
    const left = Math.round((new Date(element.dataset.countdown) - offset - performance.now()) / 1000);
    element.textContent = left > 0 ? lasting(left) + " left" : "time is up";
    if (left === 0) refresh();
  }
}
setInterval(countdowns, 1000);

// restOfTexts says above a statement that is longer than its box what of it is out of sight
// until somebody scrolls there.
function restOfTexts(root) {
  for (const pre of root.querySelectorAll(".sheet-sql .sql > pre")) {
    if (pre.previousElementSibling?.matches(".below")) pre.previousElementSibling.remove();
    const bottom = pre.getBoundingClientRect().top + pre.clientHeight;
    if (pre.scrollHeight <= pre.clientHeight + 4) continue;
    const words = [...pre.querySelectorAll(".q-keyword")].filter((word) => word.getBoundingClientRect().bottom + pre.scrollTop > bottom).map((word) => word.textContent.toUpperCase());
    const line = document.createElement("p");
    line.className = "below";
    const first = [...new Set(words)].sort((a, b) => (b === "OR") - (a === "OR")).slice(0, 4);
    line.textContent = "Scroll in it for the rest" + (first.length ? ": " + first.join(", ") : "");
    pre.before(line);
  }
}
addEventListener("resize", () => restOfTexts(document));

// refresh fetches this page again and puts its regions in the place of the old
// ones. Where somebody types, presses or reads an opened part, the region is left alone.
// One fetch follows another: a page that is dear to make is not asked for twice at once.
let waiting = null;
let fetching = false;
let again = false;
function refresh() {
  if (fetching) again = true;
  else waiting ??= setTimeout(async () => {
    [waiting, fetching, again] = [null, true, false];
    await renew().finally(() => { fetching = false; });
    if (again) refresh();
  }, 250);
}

// news is when something happened last that the page does not show yet. A page of /v1
// may be made of older answers, and tells their age: then it is asked for again later.
let news = -Infinity;
function happened() {
  news = performance.now();
  refresh();
}

async function renew() {
  const began = performance.now();
  const page = location.href;
  const answer = await fetch(page, { headers: { "X-Background": news > -Infinity ? "news" : "look" } }).catch(() => null);
  if (answer?.status === 401) {
    say("You were logged out. Reload the page to log in.");
    stream?.close();
    return;
  }
  outdated(!answer?.ok);
  if (!answer || answer.redirected) return;
  if (answer.ok && news <= began - 1000 * Number(answer.headers.get("Age") ?? 0)) news = -Infinity;
  const fresh = new DOMParser().parseFromString(policy.createHTML(await answer.text()), "text/html");
  if (location.href !== page) return; // another one was visited meanwhile
  setClock(fresh);
  for (const region of document.querySelectorAll("[data-region]")) {
    const next = fresh.getElementById(region.id);
    const settled = next && next.dataset.state !== region.dataset.state && !pressing() && !document.querySelector("dialog [value=yes]:disabled");
    if (settled) decidedMeanwhile(region, next);
    const kept = !settled && busy(region);
    if (next && !kept && next.innerHTML !== region.dataset.served) replace(region, next);
    else if (next && kept) changedMeanwhile(region, next);
  }
  document.title = fresh.title;
  settle(document);
}

// outdated says of a page that could not be read again how old it is: under the banner of a
// gate that is gone, "Every outcome is known" would be said of now.
let readAt = performance.now();
function outdated(is) {
  const line = document.getElementById("outdated");
  if (!is) {
    readAt = performance.now();
    line?.remove();
  } else if (!line && document.querySelector("main [data-region]")) {
    const added = document.createElement("p");
    added.id = "outdated";
    added.className = "callout warn";
    added.setAttribute("role", "status");
    added.textContent = "This page could not be read again. What stands here is as of " + new Date(offset + readAt).toISOString().slice(11, 19) + " UTC, and may not hold any more.";
    document.querySelector("main").prepend(added);
  }
}

// decidedMeanwhile ends what somebody does with an approval that is settled; what was
// typed stays to be read.
function decidedMeanwhile(region, next) {
  document.getElementById("confirm")?.close();
  const note = region.querySelector("textarea")?.value;
  if (!note) return;
  const line = document.createElement("p");
  line.className = "callout warn";
  line.textContent = "This was decided meanwhile. Your note was not sent: " + note;
  next.prepend(line);
}

// changedMeanwhile says in a list that is left alone what it does not show: what was decided
// or is over is marked and selected no more, and what came is offered.
function changedMeanwhile(region, next) {
  const ids = (of) => new Set([...of.querySelectorAll("[data-row]")].map((row) => row.dataset.row));
  const [before, now] = [ids(region), ids(next)];
  const over = [...before].filter((id) => !now.has(id));
  const came = [...now].filter((id) => !before.has(id)).length;
  for (const id of over) {
    for (const row of document.querySelectorAll(`[data-row="${CSS.escape(id)}"]:not(.over), [data-of="${CSS.escape(id)}"]:not(.over)`)) {
      row.classList.add("over");
      row.append(Object.assign(document.createElement("strong"), { className: "pill warn", textContent: "Decided or over meanwhile" }));
      const box = row.querySelector("[data-select]");
      if (box) box.checked = !(box.disabled = true);
    }
  }
  if (!over.length && !came) return;
  let line = region.querySelector(".changed");
  if (!line) {
    line = Object.assign(document.createElement("p"), { className: "callout warn changed" });
    line.setAttribute("role", "status");
    line.append(document.createElement("span"), " ", Object.assign(document.createElement("button"), { type: "button", textContent: "Show it" }));
    line.querySelector("button").dataset.show = "";
    region.prepend(line);
  }
  const words = `The list has changed: ${[over.length && `${over.length} decided or over`, came && `${came} new`].filter(Boolean).join(", ")}.`;
  if (line.firstChild.textContent !== words) line.firstChild.textContent = words;
}

// A click needs the same element at both of its ends, so nothing is replaced under
// a button that is held down. One that never comes up does not count for long.
const longestPress = 5000;
let pressed = -Infinity;
let missed = false;
function pressing() {
  const now = performance.now() - pressed < longestPress;
  missed ||= now;
  return now;
}
addEventListener("pointerdown", () => { pressed = performance.now(); }, true);
for (const end of ["pointerup", "pointercancel"]) {
  addEventListener(end, () => setTimeout(() => { // behind the click
    pressed = -Infinity;
    if (missed) refresh();
    missed = false;
  }), true);
}

function busy(region) {
  const active = document.activeElement;
  const typing = region.contains(active) && active.matches("input:not([type=checkbox]), textarea, select");
  return typing || pressing() || region.querySelector("[data-select]:checked") || region.querySelector("textarea")?.value || region.querySelector("details[open]") || document.querySelector("dialog[open]");
}

function replace(region, next) {
  const focused = region.contains(document.activeElement) ? focusKey(document.activeElement) : null;
  const served = next.innerHTML;
  const adopted = document.adoptNode(next);
  adopted.dataset.served = served;
  region.replaceWith(adopted);
  if (focused) adopted.querySelector(focused)?.focus();
}

// focusKey finds an element again in what takes its place: by its id, its target or what it does.
function focusKey(element) {
  if (element.id) return "#" + CSS.escape(element.id);
  const marks = [...element.attributes].filter(({ name }) => name === "href" || name.startsWith("data-"));
  return marks.length ? element.localName + marks.map(({ name, value }) => `[${name}="${CSS.escape(value)}"]`).join("") : null;
}

// The stream says that something happened; what it is, the page itself tells.
const kinds = ["request_received", "query_rejected", "decision_recorded", "approval_created", "approval_resolved", "approval_expired", "approval_used", "approvals_purged",
  "grant_created", "grant_used", "grant_revoked", "grant_expired",
  "execution_dispatched", "execution_success", "execution_failure", "execution_state_unknown", "execution_outcome_resolved", "read_fence_violation", "policy_loaded", "policy_validated",
  "policy_activated", "policy_candidate_created", "policy_candidate_rejected", "policy_rollback", "startup", "shutdown", "log_tail_recovered", "log_fence_taken", "health_fail", "db_unavailable",
  "rate_limit_hit", "oversized_request", "operator_auth_failed", "wire_login_failed", "evidence_exported", "audit_corruption_detected", "emergency_bypass", "checkpoint_signed", "catalog_recorded",
  "session_opened", "session_closed", "GATE_CANCEL_REQUEST_RECEIVED", "GATE_CANCEL_FORWARDED_TO_BACKEND", "GATE_CANCEL_REJECTED", "GATE_CANCEL_BEFORE_DISPATCH",
  "agent_registered", "agent_updated", "agent_deactivated", "agent_token_issued", "agent_token_revoked", "agent_subject_bound", "agent_subject_unbound", "agent_policy_created", "agent_policy_updated", "agent_policy_applied",
  "agent_policy_detached", "telemetry_received", "usage_recorded", "tool_registered", "tool_updated", "tool_verified"];
const words = (text) => text.split(" ").filter(Boolean);

// ofShownAgent keeps a page from looking again for agents that it does not show.
function ofShownAgent(payload) {
  const named = new Set([payload.agent_id, payload.facts?.agent_id, payload.agent_layer?.agent_id, ...(payload.events ?? []).map((one) => one.agent_id)]);
  return [...document.querySelectorAll("[data-agent]")].some((element) => named.has(element.dataset.agent));
}

// It begins where this page ends, so that nothing falls in between.
let stream = null;
function follow(from) {
  const { live: wanted, liveShown = "" } = document.querySelector("main").dataset;
  if (wanted === undefined) return;
  stream = new EventSource("/api/gate/audit/stream" + (from ? "?from_seq=" + from : ""));
  for (const kind of wanted === "*" ? kinds : words(wanted)) stream.addEventListener(kind, happened);
  for (const kind of words(liveShown)) stream.addEventListener(kind, (event) => { if (ofShownAgent(JSON.parse(event.data).payload)) happened(); });
  let lost = !from; // what happened while there was no stream was not told
  stream.onopen = () => { if (lost) happened(); lost = false; };
  stream.onerror = () => {
    lost = true;
    happened();
    if (stream.readyState === EventSource.CLOSED) setTimeout(follow, 3000, 0);
  };
}
// Not everything that a page shows is an event: the gate's state is looked at too.
setInterval(() => { if (document.visibilityState === "visible" && document.querySelector(".who")) refresh(); }, 15000);

// confirm asks once more; work is done while the dialog is open, and what went
// wrong is said in it.
function confirmed({ title, text, list = [], hash, yes, grave, work }) {
  const dialog = document.getElementById("confirm");
  const problem = dialog.querySelector(".problem");
  const typed = dialog.querySelector("#typed-hash");
  dialog.querySelector("h2").textContent = title;
  dialog.querySelector("#confirm-text").textContent = text;
  const names = dialog.querySelector("#confirm-list");
  names.replaceChildren(...list);
  names.hidden = list.length === 0;
  const button = dialog.querySelector("button[value=yes]");
  button.textContent = yes;
  button.className = grave ? "danger" : "main";
  problem.hidden = true;
  dialog.querySelector("#confirm-hash")?.toggleAttribute("hidden", !hash);
  if (typed) typed.value = "";
  const form = dialog.querySelector("form");
  form.onsubmit = async (event) => {
    if (event.submitter?.value !== "yes") return;
    event.preventDefault();
    if (hash && typed.value.trim().replace(/^sha256:/, "").toLowerCase() !== hash.toLowerCase()) {
      problem.textContent = "That is not the SHA-256 of this version. Nothing was done.";
      problem.hidden = false;
      return;
    }
    event.submitter.disabled = true;
    const answer = await work().catch(() => ({ ok: false, value: { message: "This page could not reach its own server. Nothing may have been done: look before you try again." } }));
    event.submitter.disabled = false;
    if (answer.ok) {
      dialog.close();
      return;
    }
    const fields = Object.entries(answer.value.details?.fields ?? {}).map(([name, why]) => ` ${name} ${why}.`);
    problem.textContent = (answer.value.message ?? "It was refused.") + fields.join("");
    problem.hidden = false;
  };
  dialog.showModal();
}

// A decision waits for some seconds before it is sent, so that it can be taken back.
const undoSeconds = 5; // at most
let held = null; // the newest that can be taken back; those before it wait for their own time
const waitingToBeSent = new Set();
// undoFor is how many of them there are: a decision has to arrive before the time of its approvals is over.
function undoFor(countdowns) {
  const left = [...countdowns].map((element) => (new Date(element.dataset.countdown) - offset - performance.now()) / 1000);
  return Math.max(0, Math.min(undoSeconds, Math.floor(Math.min(...left, Infinity)) - 2));
}
function takenBack(seconds) {
  return seconds ? ` You can take that back for ${inWords(seconds)}, and not afterwards.` : " Its time is nearly over, so that is sent at once and can't be taken back.";
}
function inWords(seconds) {
  return seconds === 1 ? "1 second" : seconds + " seconds";
}
function hold(ids, decision, note, what, seconds) {
  const back = location.pathname + location.search;
  const bar = document.createElement("div");
  bar.className = "held";
  bar.setAttribute("role", "status");
  const text = document.createElement("span");
  const undo = document.createElement("button");
  undo.type = "button";
  undo.dataset.undo = "";
  undo.textContent = "Undo";
  bar.append(text, undo);
  document.body.append(bar);
  text.textContent = `${decision === "approve" ? "Approving" : "Rejecting"} ${ids.length === 1 ? "one statement" : ids.length + " statements"} ${seconds ? "in " + inWords(seconds) : "at once"}: ${what}`;
  const timer = setTimeout(() => mine.sendNow(), seconds * 1000);
  const end = () => {
    clearTimeout(timer);
    bar.remove();
    waitingToBeSent.delete(mine);
    if (held === mine) held = [...waitingToBeSent].at(-1) ?? null;
  };
  const mine = held = {
    ids, bar,
    async sendNow() {
      end();
      let sent = 0;
      for (const id of ids) {
        const answer = await send("/approvals/" + id + "/resolve", { decision, note }).catch(() => ({ ok: false, value: { message: "This page could not reach its own server. It may not have been decided: look." } }));
        if (answer.ok) sent++;
        else say(`Not done: ${answer.value.message ?? "it was refused."} (${id}: ${what})${note && ` Your note was: ${note}`}`, true);
      }
      const which = sent === 1 && ids.length === 1 ? what : `${sent} of ${ids.length} statements, as ${what}`;
      if (sent) say(decision === "approve" ? `Approved, and the caller may send it again now: ${which}` : "Rejected: " + which);
      refresh();
    },
    async takeBack() {
      end();
      say("Taken back. Nothing was sent.");
      if (location.pathname + location.search !== back) await visit(back);
      const field = document.getElementById("note");
      if (field) field.value = note;
      showHeld();
    },
  };
  waitingToBeSent.add(mine);
  showHeld();
}
// beginning is as much of a statement as tells it from others.
function beginning(code) {
  const text = code.innerText.replace(/\s+/g, " ").trim();
  return text.length > 70 ? text.slice(0, 70) + "…" : text;
}
addEventListener("beforeunload", (event) => { if (waitingToBeSent.size) event.preventDefault(); });

// showHeld takes what is decided and not sent yet out of what can be decided.
function showHeld() {
  const ids = new Set([...waitingToBeSent].flatMap((one) => one.ids));
  for (const row of document.querySelectorAll("[data-row]")) row.classList.toggle("decided", ids.has(row.dataset.row));
  for (const button of document.querySelectorAll("[data-decision]")) button.disabled = ids.has(button.form.dataset.resolve);
  [...waitingToBeSent].forEach((one, n) => { one.bar.style.top = `${0.5 + 3.6 * n}rem`; });
}

// visit goes to another page without leaving this one, so that what is held is not lost.
async function visit(path) {
  const answer = await fetch(path).catch(() => null);
  if (!answer?.ok || answer.redirected) return;
  const fresh = new DOMParser().parseFromString(policy.createHTML(await answer.text()), "text/html");
  stream?.close();
  history.pushState(null, "", path);
  document.title = fresh.title;
  document.querySelector("main").replaceWith(document.adoptNode(fresh.querySelector("main")));
  setClock(document);
  settle(document);
  scrollTo(0, 0);
  document.querySelector("main").focus({ preventScroll: true });
  follow(1 + Number(document.querySelector("main").dataset.head ?? -1));
}
addEventListener("popstate", () => location.reload());

// Keys act while the focus is in the content and not in a field (WCAG 2.1.4).
const rows = () => [...document.querySelectorAll("[data-row]:not(.decided, .over) a")];
const steps = {
  j: () => move(1),
  k: () => move(-1),
  x: () => (document.activeElement.closest("[data-row]")?.querySelector("[data-select]") ?? nothing("Only one of several of a shape is selected: go to it with j and k."))?.click(),
  a: () => decideBy("approve"),
  r: () => decideBy("reject"),
  u: () => (held ?? nothing("Nothing waits to be sent."))?.takeBack(),
  "?": () => document.getElementById("keys")?.showModal(),
};
// nothing says why a key does nothing.
function nothing(why) {
  say(why);
  return null;
}
function move(by) {
  const all = rows();
  if (!all.length) return nothing("There is no list here to go through.");
  const at = all.indexOf(document.activeElement.closest("[data-row]")?.querySelector("a"));
  all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + by))]?.focus();
}
function decideBy(decision) {
  const sets = [...new Set([...document.querySelectorAll("[data-select]:checked")].map((box) => box.closest("section")))];
  const set = sets[0];
  const alone = sets.filter((one) => decision === "approve" && !one.querySelector("[data-together=approve]"));
  if (alone.length) return nothing(alone.map((one) => `“${one.dataset.name}” is not approved together. ${one.querySelector("[data-alone]").textContent}`).join(" "));
  if (sets.length > 1) return nothing(`One group is decided at a time, and some are selected in ${sets.length}: ${sets.map((one) => `“${one.dataset.name}”`).join(", ")}.`);
  const button = set ? set.querySelector(`[data-together=${decision}]`) : document.querySelector(`[data-decision=${decision}]`);
  if (button?.disabled) nothing("It is decided, and about to be sent.");
  else if (button) button.click();
  else if (document.querySelector("[data-row]")) nothing("Nothing is selected. Select with x, or open one with Enter.");
  else nothing("There is nothing here to decide.");
}
document.addEventListener("keydown", (event) => {
  const active = document.activeElement;
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") || !document.getElementById("keys")) return;
  if (!active.closest("main, .held") || active.matches("textarea, select, input:not([type=checkbox])")) return;
  const step = steps[event.key];
  if (step) {
    event.preventDefault();
    step();
  }
});

// What the database knows of a transaction (design/execution-and-wire.md).
const outcomes = { committed: "It was applied.", aborted: "It was not applied.", in_progress: "It is still running.", not_knowable: "The database cannot tell any more." };

const actions = {
  resolve(button) {
    const form = button.closest("form");
    const approve = button.dataset.decision === "approve";
    const left = () => undoFor(document.querySelectorAll("#approval .lead [data-countdown]"));
    confirmed({
      title: approve ? "Approve this statement?" : "Reject this statement?",
      text: approve
        ? (form.dataset.since ?? "It may then run once, exactly as shown, when the caller sends it again in time.") + takenBack(left())
        : "It can then never run under this approval." + takenBack(left()),
      list: lines(document.querySelector("#approval h1 .asked").textContent, form.note.value && "Note: " + form.note.value),
      yes: approve ? "Approve" : "Reject", grave: !approve || !button.classList.contains("main"),
      work: async () => {
        const next = form.closest("[data-next]")?.dataset.next;
        hold([form.dataset.resolve], button.dataset.decision, form.note.value, beginning(document.querySelector("#approval .sql code")), left());
        form.note.value = "";
        if (next) setTimeout(visit, 0, next); // when the dialog is closed
        return { ok: true };
      },
    });
  },
  all(button) {
    const boxes = [...button.closest("section").querySelectorAll("[data-select]:enabled")];
    const every = boxes.every((box) => box.checked);
    for (const box of boxes) box.checked = !every;
  },
  // together decides a set of one shape; the question names each.
  together(button) {
    const chosen = [...button.closest("section").querySelectorAll("[data-row]:not(.decided, .over)")].filter((row) => row.querySelector("[data-select]:checked"));
    if (!chosen.length) return say("Select some first, with x or the boxes.");
    const approve = button.dataset.together === "approve";
    confirmed({
      title: `${approve ? "Approve" : "Reject"} ${chosen.length === 1 ? "this statement" : `these ${chosen.length} statements`}?`,
      text: approve ? "Each may then run once, exactly as shown, when its caller sends it again in time." : "None of them can then run under its approval.",
      list: chosen.map((row) => {
        const item = document.createElement("li");
        item.dataset.of = row.dataset.row;
        item.append(row.querySelector(".line").cloneNode(true), row.querySelector("a > .soft").cloneNode(true));
        return item;
      }),
      yes: `${approve ? "Approve" : "Reject"} ${chosen.length}`, grave: !approve,
      work: async () => {
        const left = chosen.filter((row) => !row.matches(".over"));
        if (left.length) hold(left.map((row) => row.dataset.row), button.dataset.together, "", beginning(left[0].querySelector(".line")), undoFor(left.map((row) => row.querySelector("[data-countdown]"))));
        else say("All of these were decided, or over, meanwhile. Nothing was sent.");
        for (const row of left) row.querySelector("[data-select]").checked = false;
        setTimeout(move, 0, 1);
        return { ok: true };
      },
    });
  },
  async check(button) {
    button.disabled = true;
    const answer = await send("/executions/" + button.dataset.check + "/check", {});
    button.disabled = false;
    say(answer.ok ? outcomes[answer.value.outcome] ?? "The database could not tell yet." : answer.value.message);
    refresh();
  },
  activate(button) {
    const form = button.closest("form");
    confirmed({
      title: "Activate " + form.dataset.version + "?", hash: form.dataset.hash, yes: "Activate",
      text: "This version decides about every statement from then on. Pending approvals stay and are judged by it.",
      list: lines(form.dataset.verdict, form.reason.value ? "Reason: " + form.reason.value : "No reason is given."),
      work: () => change("/policy/activate", {
        policy_version: form.dataset.version, expected_hash: form.dataset.hash, reason: form.reason.value,
        ...(form.dataset.impact && { impact: JSON.parse(form.dataset.impact) }),
      }),
    });
  },
  rollback(button) {
    const form = button.closest("form");
    confirmed({
      title: "Put " + form.dataset.version + " back in force?", yes: "Put it back", grave: true,
      text: "It decides about every statement from then on. Pending approvals stay and are judged by it.",
      list: lines(form.dataset.verdict, form.reason.value ? "Reason: " + form.reason.value : "No reason is given."),
      work: () => change("/policy/rollback", { policy_version: form.dataset.version, reason: form.reason.value }),
    });
  },
  deactivate(button) {
    const form = button.form;
    confirmed({
      title: "Deactivate " + form.dataset.name + "?", yes: "Deactivate", grave: true,
      text: "Its tokens stop working at once, and approvals that it asked for can't be resolved or used any more. Its history stays. The agent API can put it back in service, with a new token.",
      work: () => end("/v1/agents/" + form.dataset.id + (form.reason.value && "?reason=" + encodeURIComponent(form.reason.value))),
    });
  },
  revoke(button) {
    confirmed({
      title: "Revoke the token " + button.dataset.name + "?", yes: "Revoke", grave: true,
      text: "The next request with it fails. Revoking cannot be taken back; the agent API issues another token.",
      work: () => end("/v1/agents/" + button.dataset.id + "/tokens/" + button.dataset.token),
    });
  },
  apply(button) {
    const { id, agentName, rules, name, priority } = button.form.dataset;
    confirmed({
      title: `Apply ${name} to ${agentName}?`, yes: "Apply",
      text: "Its rules bind what the agent does from then on. They can only tighten what the gate's policy decides, and can be taken away again.",
      work: async () => {
        const answer = await send("/v1/policies/" + rules + "/apply", { agent_id: id, priority });
        if (answer.ok) location.assign("/agents/" + id);
        return answer;
      },
    });
  },
  giveGrant(button) {
    const { agent, name, condition, minutes, uses, rows, reason, covered } = button.form.dataset;
    confirmed({
      title: `Give ${name} this grant?`, yes: "Give it",
      text: `Up to ${uses} statements that meet the condition then run without an approval, changing ${rows} rows together at most, for ${minutes} minutes. It can be revoked.`,
      list: lines(condition, `It would have covered ${covered} of the last day.`, "Reason: " + reason),
      work: async () => {
        const until = new Date(offset + performance.now() + minutes * 60000).toISOString();
        const answer = await send("/grants", { agent_id: agent, condition, until, uses: Number(uses), rows: Number(rows), reason });
        if (answer.ok) location.assign("/grants/" + answer.value.grant_id);
        return answer;
      },
    });
  },
  revokeGrant(button) {
    const form = button.form;
    confirmed({
      title: "Revoke this grant?", yes: "Revoke", grave: true,
      text: "Statements that ran under it stay as they are, and those that are under way end by themselves. The next one asks for an approval.",
      work: async () => {
        const answer = await send("/grants/" + form.dataset.id + "/revoke", form.note.value ? { note: form.note.value } : {});
        if (answer.ok) location.reload();
        return answer;
      },
    });
  },
  detach(button) {
    const { id, agentName, rules, name } = button.dataset;
    confirmed({
      title: `Take ${name} away from ${agentName}?`, yes: "Take away", grave: true,
      text: "What its rules block or hold for approval is then left to the gate's policy and to the agent's other rules.",
      work: () => end("/v1/policies/" + rules + "/apply?agent_id=" + id),
    });
  },
  async validate(button) {
    const answer = await send("/policy/validate", { document: button.form.document.value });
    const warned = answer.ok ? (answer.value.warnings ?? []).length : 0;
    findings(answer.ok ? [...(answer.value.findings ?? []), ...(answer.value.warnings ?? [])] : null, answer.ok && answer.value.valid ? `Valid${warned ? `, with ${warned === 1 ? "1 warning" : warned + " warnings"}` : ""}: ` + answer.value.tests.passed + " of " + answer.value.tests.cases + " own tests passed." : answer.value.message ?? "Not valid.");
  },
  candidate(button) {
    const form = button.form;
    confirmed({
      title: "Submit this version?", yes: "Submit",
      text: "Its bytes are kept as they are and its number is spent. Nothing changes until somebody activates it.",
      work: async () => {
        const answer = await send("/policy/candidates", { document: form.document.value, note: form.note.value });
        if (answer.ok) location.assign("/policies/" + encodeURIComponent(answer.value.policy_version));
        else findings(answer.value.details?.findings, answer.value.message);
        return answer;
      },
    });
  },
};

// lines are the items of a dialog's list, of texts that are not empty.
function lines(...texts) {
  return texts.filter(Boolean).map((text) => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  });
}

async function end(path) {
  const answer = await send(path, null, "DELETE");
  if (answer.ok) location.reload(); // what a page asks for by itself may be older
  return answer;
}

async function change(path, body) {
  if (!body.reason) delete body.reason;
  const answer = await send(path, body);
  if (answer.ok) location.assign("/policies");
  return answer;
}

function findings(list, summary) {
  const box = document.getElementById("findings");
  const head = document.createElement("p");
  head.textContent = summary;
  const items = document.createElement("ul");
  items.className = "signals";
  for (const one of list ?? []) {
    const item = document.createElement("li");
    item.className = one.severity === "error" ? "bad" : one.severity === "warning" ? "warn" : "calm";
    item.textContent = `${one.code}${one.line ? ", line " + one.line : ""}: ${one.message}.${one.suggestion ? ` Try ${one.suggestion}` : ""}`;
    items.append(item);
  }
  box.replaceChildren(head, items);
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.decision) actions.resolve(button);
  else if (button.dataset.undo !== undefined) [...waitingToBeSent].find((one) => one.bar.contains(button))?.takeBack();
  else if (button.dataset.show !== undefined) {
    for (const box of document.querySelectorAll("[data-select]:checked")) box.checked = false;
    refresh();
  } else if (button.dataset.all !== undefined) actions.all(button);
  else if (button.dataset.together) actions.together(button);
  else if (button.dataset.check) actions.check(button);
  else if (button.dataset.step) actions[button.dataset.step](button);
  else if (button.dataset.copy || button.dataset.copyText) {
    await navigator.clipboard.writeText(button.dataset.copyText ?? document.getElementById(button.dataset.copy).textContent);
    say("Copied.");
  } else if (button.type === "button" && button.form?.dataset.policy) actions[button.form.dataset.policy](button);
});

document.addEventListener("change", async (event) => {
  if (event.target.id === "file" && event.target.files[0]) {
    event.target.form.document.value = await event.target.files[0].text();
  }
});

// A span of a chart is dragged over, or its first and last bars are clicked. The fields
// below it say which it is, and are the way by keyboard.
let span = null;
function markSpan(at, ends) {
  const from = Math.min(at, ends);
  const to = Math.max(at, ends);
  const { elements } = span.chart.closest("form");
  elements.since.selectedIndex = from;
  elements.until.selectedIndex = to;
  const mark = span.chart.querySelector(".span");
  const width = span.chart.viewBox.baseVal.width / span.chart.dataset.steps;
  mark.setAttribute("x", from * width);
  mark.setAttribute("width", (to - from + 1) * width);
}
function stepAt(event) {
  const box = span.chart.getBoundingClientRect();
  const n = Number(span.chart.dataset.steps);
  return Math.max(0, Math.min(n - 1, Math.floor((event.clientX - box.left) / box.width * n)));
}
document.addEventListener("pointerdown", (event) => {
  const chart = event.target.closest(".spans");
  if (!chart || event.button !== 0) return;
  chart.setPointerCapture(event.pointerId);
  const second = span?.chart === chart;
  span ??= { chart };
  if (!second) span.from = stepAt(event);
  span.held = true;
  span.done = second;
  markSpan(span.from, stepAt(event));
});
document.addEventListener("pointermove", (event) => {
  if (!span?.held) return;
  const at = stepAt(event);
  span.done ||= at !== span.from;
  markSpan(span.from, at);
});
document.addEventListener("pointerup", () => {
  if (!span?.held) return;
  span.held = false;
  if (span.done) span.chart.closest("form").requestSubmit();
});
document.addEventListener("pointercancel", () => { if (span) span.held = false; });

// Long work shows that it runs; a form that is an action is not sent by Enter.
document.addEventListener("submit", (event) => {
  if (event.target.dataset.policy || event.target.dataset.resolve) event.preventDefault();
  if (event.target.dataset.slow) event.target.querySelector("progress.slow").hidden = false;
});

function settle(root) {
  localTimes(root);
  restOfTexts(root);
  countdowns();
  showHeld();
}
setClock(document);
settle(document);
if (document.getElementById("keys") && document.activeElement === document.body) document.querySelector("main").focus({ preventScroll: true });
follow(1 + Number(document.querySelector("main").dataset.head ?? -1));
