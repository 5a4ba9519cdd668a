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
      Plotly.react(place, data, { ...layout, template, font, width, autosize: !width }, options);
    }
  }

  function show() {
    button.textContent = isDark() ? "Light" : "Dark";
    draw();
  }

  function choose(theme) {
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
  }

  // on paper nobody can open a card
  const cards = [...document.querySelectorAll("details.nk-card[class*=nk-edge-]")];
  let chosen, folded = [];
  button.hidden = false;
  button.addEventListener("click", () => { choose(isDark() ? "light" : "dark"); show(); });
  prefersDark.addEventListener("change", show);
  addEventListener("beforeprint", () => {
    chosen = root.dataset.theme;
    choose("light");
    folded = cards.filter(card => !card.open);
    for (const card of folded) card.open = true;
    draw(680);
  });
  addEventListener("afterprint", () => {
    for (const card of folded) card.open = false;
    choose(chosen);
    show();
  });
  show();
  root.dataset.drawn = figures.length;
})();
