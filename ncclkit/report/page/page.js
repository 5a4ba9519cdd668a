// The report's only script: draws the figures and follows light, dark and paper.
(() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const figures = [...document.querySelectorAll("script.figure-data")].map(data => {
    const place = document.createElement("div");
    data.before(place);
    return { place, ...JSON.parse(data.textContent) };
  });
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches;
  const isObject = value => value && typeof value === "object" && !Array.isArray(value);
  const merge = (base, over) => {
    const result = { ...base };
    for (const [key, value] of Object.entries(over)) {
      result[key] = isObject(value) ? merge(base?.[key] ?? {}, value) : value;
    }
    return result;
  };

  // The page's own colours, in a figure's terms; what a figure sets itself stays, but for its ink.
  function colours() {
    const style = getComputedStyle(root), of = name => style.getPropertyValue(name).trim();
    const font = { color: of("--ink"), family: getComputedStyle(document.body).fontFamily };
    const line = of("--line"), clear = "rgba(0,0,0,0)";
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, tickcolor: line };
    const hoverlabel = { bgcolor: of("--raised"), bordercolor: line, font };
    return { font, hoverlabel, xaxis: axis, yaxis: axis, paper_bgcolor: clear, plot_bgcolor: clear, legend: { bgcolor: clear } };
  }

  function draw(width) {
    const page = colours();
    for (const { place, data, layout = {}, config } of figures) {
      const template = { ...layout.template, layout: merge(layout.template?.layout ?? {}, page) };
      const font = { ...layout.font, ...page.font };
      const options = { responsive: true, displaylogo: false, ...config };
      const drawn = { ...layout, template, font, width, autosize: !width };
      Plotly.react(place, data, drawn, options).then(() => fit(place, layout));
    }
  }

  // a figure keeps room for its legend on a phone: what it does not need on this screen is cut away
  function fit(place, layout) {
    const legend = place.querySelector(".legend .bg");
    if (!legend || layout.legend?.yanchor !== "bottom" || !layout.margin?.t) return;
    const spare = layout.margin.t - Math.ceil(legend.getBBox().height) - 10;
    if (spare <= 0) return;
    const height = layout.height - spare;
    place.parentElement.style.minHeight = `${height}px`;
    Plotly.relayout(place, { "margin.t": layout.margin.t - spare, height });
  }

  function show() {
    button.textContent = isDark() ? "Light" : "Dark";
    draw();
  }

  function choose(theme) {
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
  }

  // on paper nobody can open a card; what solves a question stands on a sheet of its own, at the end
  const answers = document.querySelector(".answers");
  const cards = [...document.querySelectorAll("details.nk-card[class*=nk-edge-]")];
  const solutions = answers ? [...document.querySelectorAll(".nk-solves")] : [];
  const SHORT = 640;  // pixels on a screen, where letters are larger: less than half a sheet
  let chosen, opened = [], moved = [];

  function open(details) {
    const closed = details.filter(each => !each.open);
    for (const each of closed) each.open = true;
    opened.push(...closed);
  }

  function move(solution) {
    const place = document.createElement("p"), about = document.createElement("p");
    place.className = "nk-dim";
    place.textContent = answers.dataset.elsewhere;
    about.className = "answer-about";
    about.textContent = solution.dataset.about ?? "";
    const frame = document.createElement("div");
    frame.className = "nk";
    solution.replaceWith(place);
    if (about.textContent) frame.append(about);
    frame.append(solution);
    answers.append(frame);
    moved.push({ place, frame, solution });
  }

  button.hidden = false;
  button.addEventListener("click", () => { choose(isDark() ? "light" : "dark"); show(); });
  prefersDark.addEventListener("change", show);
  addEventListener("beforeprint", () => {
    chosen = root.dataset.theme;
    choose("light");
    solutions.forEach(move);
    open(cards);
    open(solutions.flatMap(each => [each, ...each.querySelectorAll("details")]).filter(each => each.matches("details")));
    // of what is short no part goes to the next sheet
    for (const card of document.querySelectorAll(".nk-card")) {
      if (card.offsetHeight < SHORT) card.classList.add("whole");
    }
    draw(680);
  });
  addEventListener("afterprint", () => {
    for (const each of opened) each.open = false;
    for (const { place, frame, solution } of moved) {
      place.replaceWith(solution);
      frame.remove();
    }
    opened = [];
    moved = [];
    choose(chosen);
    show();
  });
  show();
  root.dataset.drawn = figures.length;
})();
