// Refreshes the part of a page that changes while a run goes on. The page works without it.
"use strict";
(function () {
  function every() {
    var mark = document.querySelector("#live [data-live]");
    if (!mark) return;
    window.setTimeout(function () {
      window.fetch(window.location.href, { credentials: "same-origin" })
        .then(function (answer) { return answer.ok ? answer.text() : null; })
        .then(function (text) {
          if (text === null) return;
          var next = new DOMParser().parseFromString(text, "text/html").getElementById("live");
          var now = document.getElementById("live");
          if (next && now) now.replaceWith(document.adoptNode(next));
          // when the run has ended the whole page is loaded once, for the parts outside
          if (next && !next.querySelector("[data-live]")) window.location.reload();
        })
        .catch(function () {})
        .then(every);
    }, Number(mark.dataset.live));
  }
  every();
})();
