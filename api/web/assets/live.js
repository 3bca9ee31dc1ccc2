// Follows a run while it goes on, by its stream of events. The page works without it: then it is loaded again every
// three seconds.
"use strict";
(function () {
  // What is new of an attempt's text is appended, so that what was opened, scrolled to or selected stays so. Offsets
  // are bytes: the page holds the end of the text only.
  function grow(held, fresh) {
    var pre = held.querySelector("pre"), had = Number(held.dataset.end), has = Number(fresh.dataset.end);
    if (has <= had) return;
    var bytes = new TextEncoder().encode(fresh.querySelector("pre").textContent), from = has - bytes.length;
    var atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4;
    var text = new TextDecoder().decode(bytes.subarray(Math.max(0, had - from)));
    pre.append((from > had ? "... " + (from - had) + " bytes are left out here ...\n" : "") + text);
    held.dataset.end = has;
    if (atEnd) pre.scrollTop = pre.scrollHeight;
  }
  function logs(next) {
    var now = document.getElementById("logs"), then = next.getElementById("logs");
    if (!now || !then) return;
    then.querySelectorAll("details[data-end]").forEach(function (fresh) {
      var held = document.getElementById(fresh.id);
      if (held) return grow(held, fresh);
      now.insertBefore(document.adoptNode(fresh), now.querySelector(".all"));
      fresh.querySelector("pre").scrollTop = fresh.querySelector("pre").scrollHeight;
    });
    now.querySelector(".all").replaceWith(document.adoptNode(then.querySelector(".all")));
  }
  // Puts a part in the place of the old one; what was opened, scrolled sideways or had the focus stays so.
  function replace(id, next) {
    var now = document.getElementById(id), then = next.getElementById(id), chosen = window.getSelection();
    if (!now || !then || (!chosen.isCollapsed && now.contains(chosen.anchorNode))) return;
    var moved = Array.from(now.querySelectorAll(".scroll"), function (e) { return e.scrollLeft; });
    var opened = Array.from(now.querySelectorAll("details[id][open]"), function (e) { return "#" + e.id; });
    var focus = now.contains(document.activeElement) && document.activeElement, held = null;
    if (focus && focus.matches("details[id] > summary")) held = "#" + focus.parentNode.id + " > summary";
    else if (focus && focus.hasAttribute("href")) held = 'a[href="' + CSS.escape(focus.getAttribute("href")) + '"]';
    now.replaceWith(document.adoptNode(then));
    opened.forEach(function (details) { var e = then.querySelector(details); if (e) e.open = true; });
    then.querySelectorAll(".scroll").forEach(function (e, i) { e.scrollLeft = moved[i] || 0; });
    var same = held && then.querySelector(held);
    if (same) same.focus({ preventScroll: true });
  }
  // The first job that a part of the page has, of a run with many.
  function first(id) {
    var part = document.getElementById(id);
    return part && part.dataset.from;
  }
  function take(text) {
    var next = new DOMParser().parseFromString(text, "text/html"), goesOn = next.querySelector("#live [data-live]");
    logs(next);
    replace("live", next);
    if (!goesOn || first("times") !== first("live")) replace("times", next);
    if (!goesOn) replace("after", next);
  }
  function address() {
    var url = new URL(window.location.href);
    if (first("live")) url.searchParams.set("shown", first("live"));
    return url;
  }
  // REST: between two looks, whatever happens. SLOW: so often the clocks on the page are set, while a stream tells of
  // the rest; without one the page says how often (data-live).
  var REST = 1000, SLOW = 10000, stream = null, looking = false, more = false, timer = 0;
  function mark() { return document.querySelector("#live [data-live]"); }
  function look() {
    if (looking) { more = true; return; }
    looking = true;
    more = false;
    window.fetch(address(), { credentials: "same-origin" })
      .then(function (answer) { return answer.ok ? answer.text() : null; })
      .then(function (text) { if (text !== null) take(text); })
      .catch(function () {})
      .then(function () {
        window.setTimeout(function () {
          looking = false;
          if (more) look(); else wait();
        }, REST);
      });
  }
  function wait() {
    var here = mark();
    if (!here) return leave();
    window.clearTimeout(timer);
    if (!document.hidden) timer = window.setTimeout(look, stream ? SLOW : Number(here.dataset.live));
  }
  function leave() {
    window.clearTimeout(timer);
    if (stream) stream.close();
    stream = null;
  }
  // A tab that is not seen keeps no connection: a browser has few of them to one server.
  function follow() {
    var here = mark();
    if (!here || document.hidden) return;
    if (window.EventSource) {
      stream = new window.EventSource(window.location.pathname + "/events?after=" + here.dataset.after);
      ["run", "job", "progress", "log", "end"].forEach(function (kind) { stream.addEventListener(kind, look); });
      stream.addEventListener("error", function () {
        if (!stream || stream.readyState !== window.EventSource.CLOSED) return; // it connects again by itself
        leave();
        wait();
      });
    }
    wait();
  }
  document.addEventListener("visibilitychange", function () {
    leave();
    if (document.hidden || !mark()) return;
    look();
    follow();
  });
  document.querySelectorAll("#logs details[open] pre").forEach(function (pre) { pre.scrollTop = pre.scrollHeight; });
  follow();
})();
