// Additions to the plain forms of the pages: drag and drop, an estimate while typing, and live progress.
"use strict";

const text = document.getElementById("sequence");
if (text) {
  const shown = document.getElementById("forecast");
  let timer = 0;

  const duration = (seconds) => seconds < 60 ? `${Math.max(1, Math.round(seconds))} s`
    : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
  const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;
  const value = (name) => document.getElementById(name).value.trim();

  async function forecast() {
    const sequence = text.value.trim();
    if (!sequence || (sequence.match(/^>/gm) || []).length > 1) { shown.hidden = true; return; }
    const options = { predictions: Number(value("predictions")) || 1 };
    if (/^\d+$/.test(value("recycles"))) options.recycles = Number(value("recycles"));
    if (value("model")) options.model = value("model");
    const answer = await fetch("/api/v1/forecast", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ sequence, options }),
    });
    const found = await answer.json();
    shown.hidden = false;
    if (!answer.ok) shown.textContent = found.error;
    else if (found === null) shown.textContent = "No estimate yet, because no worker has connected.";
    else if (!found.fits) shown.textContent = `Too large for the memory of every worker; the maximum is ${found.longest} residues.`;
    else shown.textContent = `About ${duration(found.seconds)} with ${found.model}, using ${gib(found.peak_bytes)} of memory.`;
  }

  for (const name of ["sequence", "recycles", "predictions", "model"]) {
    document.getElementById(name).addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => forecast().catch(() => { shown.hidden = true; }), 500);
    });
  }
  text.addEventListener("dragover", (event) => { event.preventDefault(); text.classList.add("over"); });
  text.addEventListener("dragleave", () => text.classList.remove("over"));
  text.addEventListener("drop", async (event) => {
    text.classList.remove("over");
    const [file] = event.dataTransfer.files;
    if (!file) return;
    event.preventDefault();
    if (file.size > 2 ** 20 || /\.(csv|tsv|a3m)$/i.test(file.name)) {
      document.getElementById("sequence_file").files = event.dataTransfer.files;
      return;
    }
    text.value = await file.text();
    text.dispatchEvent(new Event("input"));
  });
}

const form = document.getElementById("submit-form");
if (form) {
  // Sending the form from this script keeps the typed text and the selected files after an error.
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const messages = document.getElementById("messages");
    const buttons = form.querySelectorAll("button");
    const body = new FormData(form);
    body.set(event.submitter.name, event.submitter.value);
    const problem = document.createElement("p");
    problem.className = "problem";
    problem.role = "alert";
    buttons.forEach((button) => { button.disabled = true; });
    try {
      const answer = await fetch("/submit", { method: "POST", body, headers: { Accept: "text/html" } });
      if (answer.redirected) { location.assign(answer.url); return; }
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const found = page.querySelectorAll("main .problem, main .note[role]:not([hidden])");
      problem.textContent = `The service refused the submission (status ${answer.status}).`;
      messages.replaceChildren(...(found.length ? found : [problem]));
    } catch {
      problem.textContent = "The submission failed: the service cannot be reached, or the files are too large.";
      messages.replaceChildren(problem);
    }
    buttons.forEach((button) => { button.disabled = false; });
    messages.scrollIntoView({ block: "nearest" });
  });
}

const link = document.getElementById("share-link");
if (link) link.textContent = link.href; // the full address, with the host as this browser knows it

const progress = document.getElementById("progress");
if (progress && ["queued", "running"].includes(progress.dataset.state)) {
  const source = new EventSource(`/api/v1/jobs/${progress.dataset.job}/events`);
  source.addEventListener("job", (event) => {
    const job = JSON.parse(event.data);
    if (job.state !== progress.dataset.state) { source.close(); location.reload(); return; }
    const line = document.querySelector("#state-line .aside");
    if (line && job.place) line.textContent = `position ${job.place}`;
    const stages = document.getElementById("stages");
    const known = job.progress.stages || [];
    for (const stage of known.slice(stages.children.length)) {
      const item = document.createElement("li");
      item.textContent = `${stage.name} (${stage.seconds.toFixed(1)} s)`;
      stages.append(item);
    }
  });
}
