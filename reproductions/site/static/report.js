// The site's own script: tabs, sorting, filters, all records, and comparing. Pages work without it but for the last two.
"use strict";
const layerlab = (() => {
  const found = {}, waiting = {};
  return {
    data(name, content) { found[name] = content; (waiting[name] || []).forEach((tell) => tell(content)); delete waiting[name]; },
    // What a script file handed over; the file is loaded on first use where `file` names it.
    get(name, file) {
      if (name in found) return Promise.resolve(found[name]);
      return new Promise((resolve, reject) => {
        (waiting[name] ||= []).push(resolve);
        if (!file || waiting[name].length > 1) return;
        const element = document.createElement("script");
        element.src = file;
        element.onerror = () => reject(new Error(`cannot load ${file}`));
        document.head.append(element);
      });
    },
  };
})();

(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  const SHARES = ["acc", "acc_norm", "exact_match", "exact", "contains", "same_top", "score", "weighted", "rouge_1", "rouge_l", "pass@1"];
  const LOWER = ["perplexity", "nll", "kl"];
  const root = document.documentElement.dataset.content_root;
  const fragment = () => new URLSearchParams(location.hash.slice(1).includes("=") ? location.hash.slice(1) : "");

  function tabs(container) {
    const panels = $$("[data-tab]", container);
    if (panels.length < 2) return;
    const list = make("div", { className: "tabs", role: "tablist" });
    list.setAttribute("role", "tablist");
    list.setAttribute("aria-label", "Measured on");
    const buttons = panels.map((panel, at) => {
      const button = make("button", { type: "button", id: `tab-${panel.id}`, textContent: panel.dataset.tab });
      button.setAttribute("role", "tab");
      button.setAttribute("aria-controls", panel.id);
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", button.id);
      $("h3", panel).classList.add("vh");
      button.onclick = () => select(at);
      list.append(button);
      return button;
    });
    const select = (at, focus = false) => {
      panels.forEach((panel, i) => { panel.hidden = i !== at; });
      buttons.forEach((button, i) => { button.setAttribute("aria-selected", i === at); button.tabIndex = i === at ? 0 : -1; });
      if (focus) buttons[at].focus();
    };
    list.onkeydown = (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const at = buttons.indexOf(document.activeElement);
      if (move && at >= 0) { select((at + move + buttons.length) % buttons.length, true); event.preventDefault(); }
    };
    container.prepend(list);
    const named = () => [(panel) => `#${panel.id}` === location.hash, (panel) => "first" in panel.dataset, () => true].map((test) => panels.findIndex(test)).find((at) => at >= 0);
    addEventListener("hashchange", () => select(named()));
    select(named());
  }

  // Sections of which a list shows one.
  function choices(container) {
    const sections = $$("[data-choice]", container);
    if (sections.length < 2) return;
    const select = make("select", {}, ...sections.map((section, value) => make("option", { value, textContent: section.dataset.choice })));
    const show = () => sections.forEach((section, at) => { section.hidden = at !== Number(select.value); });
    container.prepend(make("p", { className: "filters" }, make("label", {}, container.dataset.choices + " ", select)));
    select.oninput = show;
    show();
  }

  // Makes a table's headings buttons that call `sort(column, descending)`.
  function headings(table, sort) {
    const heads = $$("thead tr:last-child th", table);
    heads.forEach((head, at) => {
      const button = make("button", { type: "button" }, ...head.childNodes);
      head.append(button);
      button.onclick = () => {
        const descending = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sort(at, descending);
      };
    });
  }
  const order = (a, b) => {
    const empty = (x) => x === "" || x === null || x === undefined;
    if (empty(a) || empty(b)) return empty(a) - empty(b);
    const [x, y] = [Number(a), Number(b)];
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) && Number.isNaN(y) ? String(a).localeCompare(b, "en", { numeric: true }) : Number.isNaN(x) - Number.isNaN(y);
    return x - y;
  };
  // Sorts with what is empty last in either direction.
  const sorted = (rows, value, descending) => {
    const full = rows.filter((row) => order(value(row), "") < 0).sort((a, b) => order(value(a), value(b)) * (descending ? -1 : 1));
    return [...full, ...rows.filter((row) => !(order(value(row), "") < 0))];
  };

  function sortable(table) {
    const body = $("tbody", table);
    const value = (at) => (row) => { const cell = row.cells[at], text = cell.textContent.trim(); return cell.dataset.v ?? (text === "·" ? "" : text); };
    headings(table, (at, descending) => body.append(...sorted([...body.rows], value(at), descending)));
  }

  const matches = (text, words) => words.every((word) => text.includes(word));
  const wordsOf = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);

  // Lists of items that a search field and selects narrow.
  function filters() {
    const ids = new Set($$("[data-filter], [data-filter-select]").map((e) => e.dataset.filter ?? e.dataset.filterSelect));
    for (const id of ids) {
      const items = $$("[data-item]", document.getElementById(id));
      const search = $(`[data-filter="${id}"]`), selects = $$(`[data-filter-select="${id}"]`), count = $(`[data-count="${id}"]`);
      const texts = items.map((item) => item.textContent.toLowerCase() + " " + Object.values(item.dataset).join(" ").toLowerCase());
      const update = () => {
        const words = wordsOf(search.value);
        let shown = 0;
        items.forEach((item, at) => {
          item.hidden = !(matches(texts[at], words) && selects.every((s) => !s.value || item.dataset[s.dataset.key] === s.value));
          shown += !item.hidden;
        });
        $$("[data-group]", document.getElementById(id)).forEach((group) => { group.hidden = !$("[data-item]:not([hidden])", group); });
        count.textContent = `${shown} of ${items.length}`;
      };
      [search, ...selects].forEach((control) => control.addEventListener("input", update));
      const follow = () => {
        const wanted = fragment().get("q");
        if (wanted !== null) search.value = wanted;
        else if (document.getElementById(location.hash.slice(1))?.hidden) search.value = "";
        update();
      };
      addEventListener("hashchange", follow);
      follow();
    }
  }

  // A table's rows narrowed by a search, by boxes that leave some out, and by a select for every column of few words.
  function rowFilters(bar) {
    const table = $("table", bar.parentElement), rows = [...$("tbody", table).rows];
    const controls = [];
    $$("thead th", table).forEach((head, at) => {
      const words = [...new Set(rows.map((row) => row.cells[at].textContent.trim()))];
      const sizes = head.textContent.startsWith("n/N");
      const wordy = head.classList.contains("l") || head.textContent.startsWith("calibration") || rows.some((row) => row.cells[at].classList.contains("t"));
      if (at === 0 || !wordy || words.length < 2 || words.length > 12) return;
      const select = make("select", {}, make("option", { value: "", textContent: "all" }), ...words.filter(Boolean).map((word) => make("option", { textContent: word })));
      select.dataset.column = at;
      if (sizes && words.includes(bar.dataset.size)) select.value = bar.dataset.size;
      bar.insertBefore(make("label", {}, head.textContent.trim() + " ", select), $("output", bar));
      controls.push([select, at, sizes]);
    });
    const search = $("[data-row-search]", bar), box = $("[data-row-without]", bar), full = $("[data-row-full]", bar), minor = $("[data-row-minor]", bar), plain = $("[data-row-plain]", bar);
    const loader = $$("thead th", table).findIndex((head) => head.textContent.startsWith("loaded by"));
    if (loader < 0) plain.closest("label").hidden = true;
    const loads = (row) => row.cells[loader]?.textContent.includes(plain.dataset.rowPlain);
    const update = () => {
      const words = wordsOf(search.value);
      rows.forEach((row) => { row.hidden = !(matches(row.cells[0].textContent.toLowerCase(), words) && !(box.checked && row.cells[0].textContent.includes(box.dataset.rowWithout)) && !(full.checked && "partial" in row.dataset) && !(plain.checked && !loads(row)) && controls.every(([s, at, sizes]) => !s.value || row.cells[at].textContent.trim() === s.value || (sizes && row.classList.contains("dense")))); });
      table.classList.toggle("minor-hidden", !minor.checked);
      $("output", bar).textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
    };
    [search, box, full, minor, plain, ...controls.map(([s]) => s)].forEach((control) => control.addEventListener("input", update));
    update();
  }

  function copying(button) {
    if (!navigator.clipboard) return;
    button.hidden = false;
    button.onclick = async () => {
      await navigator.clipboard.writeText($("code", button.parentElement).textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    };
  }

  // A name with places where a narrow column may break it.
  const breakable = (name) => name.split(/(?<=[_@-])/).flatMap((part) => [part, make("wbr")]);

  const format = (value, digits) => {
    if (typeof value !== "number") return value ?? "";
    if (Number.isInteger(value) && digits === undefined) return value.toLocaleString("en");
    if (Math.abs(value) >= 1e9) return value.toExponential(2);
    return value.toFixed(digits ?? (Math.abs(value) < 1 ? 4 : 2));
  };

  async function values(table) {
    const { columns, strings, rows, first } = await layerlab.get("values");
    const column = Object.fromEntries(columns.map((name, at) => [name, at])), valueAt = column.value;
    const lower = (row) => LOWER.includes(read(row, column.key)), higher = (row) => SHARES.includes(read(row, column.key));
    const place = (row) => ["model", "n/N", "benchmark", "key"].map((name) => row[column[name]]).join();
    const size = 100, read = (row, at) => strings[columns[at]]?.[row[at]] ?? (columns[at] in strings ? "" : row[at]);
    const texts = rows.map((row) => columns.map((name, at) => (name in strings ? strings[name][row[at]] : "")).join(" ").toLowerCase());
    const search = $("#values-search"), selects = $$("[data-values-select]"), pager = $("#values-pager");
    for (const select of selects) {
      const all = strings[select.dataset.valuesSelect].map((text, at) => [text, at]).filter(([text]) => text);
      select.append(...all.sort((a, b) => order(a[0], b[0])).map(([textContent, value]) => make("option", { textContent, value })));
    }
    $("thead", table).append(make("tr", {}, ...columns.map((name, at) => make("th", { scope: "col", className: at < 6 ? "l" : "", textContent: name }))));
    let shown = rows.map((_, at) => at), page = 0, by = null;
    const original = (row) => read(row, column["n/N"]).startsWith("0/"), all = $("#values-all");
    const best = {}; // of a model and benchmark, with as many layers removed
    for (const row of rows) {
      const value = row[valueAt];
      if (typeof value !== "number" || original(row) || !(lower(row) || higher(row))) continue;
      const key = place(row);
      if (!(key in best) || (lower(row) ? value < best[key] : value > best[key])) best[key] = value;
    }
    const draw = () => {
      const lines = shown.slice(page * size, (page + 1) * size).map((at) => {
        const row = rows[at];
        return make("tr", {}, ...columns.map((name, i) => {
          const value = read(row, i);
          if (name === "recipe") return make("th", { scope: "row", className: "l" }, make("a", { href: `${root}recipes/${value}.html`, textContent: value.slice(0, 8) }));
          const bold = i === valueAt && !original(row) && best[place(row)] === value;
          const cell = make("td", { className: bold ? "best" : i < 6 ? "l" : typeof value === "string" && value ? "reason" : "", textContent: i < 6 ? value : format(value) });
          cell.dataset.label = name;
          return cell;
        }));
      });
      $("tbody", table).replaceChildren(...lines);
      const pages = Math.max(1, Math.ceil(shown.length / size));
      pager.hidden = pages < 2;
      $("span", pager).textContent = `Page ${page + 1} of ${pages}`;
      $("[data-page='-1']", pager).disabled = page === 0;
      $("[data-page='1']", pager).disabled = page === pages - 1;
      $("#values-count").textContent = `${shown.length} of ${rows.length} values`;
    };
    const update = () => {
      const words = wordsOf(search.value);
      const wanted = selects.filter((s) => s.value !== "").map((s) => [columns.indexOf(s.dataset.valuesSelect), Number(s.value)]);
      shown = rows.map((_, at) => at).filter((at) => (all.checked || typeof rows[at][valueAt] === "number") && matches(texts[at], words) && wanted.every(([column, value]) => rows[at][column] === value));
      const one = ["benchmark", "key"].every((name) => wanted.some(([at]) => at === column[name]));
      if (!by && one && shown.length && (lower(rows[shown[0]]) || higher(rows[shown[0]]))) shown = sorted(shown, (at) => read(rows[at], valueAt), higher(rows[shown[0]]));
      if (by) shown = sorted(shown, (at) => read(rows[at], by[0]), by[1]);
      page = 0;
      draw();
    };
    headings(table, (at, descending) => { by = [at, descending]; update(); });
    $$("button", pager).forEach((button) => { button.onclick = () => { page += Number(button.dataset.page); draw(); }; });
    [search, all, ...selects].forEach((control) => control.addEventListener("input", update));
    search.value = fragment().get("q") ?? "";
    if (!search.value) for (const select of selects) {
      const name = select.dataset.valuesSelect;
      if (name in first) select.value = strings[name].indexOf(first[name]);
    }
    update();
  }

  // Outcomes per item, see reproductions/site/data.py.
  function unpacked(packed) {
    const bytes = Uint8Array.from(atob(packed.f32 ?? packed.bits), (c) => c.charCodeAt(0));
    if (packed.f32 !== undefined) return new Float32Array(bytes.buffer);
    return Float64Array.from({ length: packed.n }, (_, i) => (bytes[i >> 3] >> (7 - (i & 7))) & 1);
  }
  // Mean of b - a over items with its standard error, null where the two have no common items.
  function paired(a, b) {
    if (!a || !b) return null;
    const [x, y] = [unpacked(a), unpacked(b)];
    if (x.length !== y.length || x.length < 2) return null;
    const mean = y.reduce((sum, v, i) => sum + v - x[i], 0) / x.length;
    const square = y.reduce((sum, v, i) => sum + (v - x[i] - mean) ** 2, 0) / (x.length - 1);
    return { mean, stderr: Math.sqrt(square / x.length), n: x.length };
  }
  const Z = 1.959964;

  // One row of the comparison: texts of the cells, and whether the second is better (1), worse (-1) or neither (0).
  function compared(benchmark, key, first, second) {
    const [a, ea] = first.values[benchmark][key], [b, eb] = second.values[benchmark][key];
    if (typeof a !== "number" || typeof b !== "number") return { cells: [format(a), format(b), "", "", ""], better: 0 };
    const share = SHARES.includes(key) || benchmark.startsWith("mmlu"), scale = share ? 100 : 1;
    if (key === "perplexity") {
      const pair = paired(first.items[benchmark]?.nll, second.items[benchmark]?.nll);
      const error = pair ? pair.stderr : ea !== null && eb !== null ? Math.hypot(ea / a, eb / b) : null;
      const middle = pair ? pair.mean : Math.log(b / a);
      const text = error === null ? "" : `${Math.exp(middle - Z * error).toFixed(3)} to ${Math.exp(middle + Z * error).toFixed(3)}`;
      const how = pair ? `paired, ${pair.n} sequences` : error === null ? "" : "unpaired";
      return { cells: [format(a), format(b), `× ${Math.exp(middle).toFixed(3)}`, text, how], better: error === null || Math.abs(middle) <= Z * error ? 0 : -Math.sign(middle) };
    }
    const pair = paired(first.items[benchmark]?.[key], second.items[benchmark]?.[key]);
    const error = pair ? pair.stderr : ea !== null && eb !== null ? Math.hypot(ea, eb) : null;
    const difference = pair ? pair.mean : b - a;
    const signed = (value) => `${value < 0 ? "−" : "+"}${format(Math.abs(value), share ? 2 : undefined)}`;
    const text = error === null ? "" : `${signed((difference - Z * error) * scale)} to ${signed((difference + Z * error) * scale)}`;
    const how = pair ? `paired, ${pair.n} items` : error === null ? "" : "unpaired";
    const direction = share ? 1 : LOWER.includes(key) ? -1 : 0;
    const tells = error !== null && Math.abs(difference) > Z * error;
    return { cells: [format(a * scale, share ? 2 : undefined), format(b * scale, share ? 2 : undefined), signed(difference * scale), text, how], better: tells ? direction * Math.sign(difference) : 0 };
  }

  async function comparing(table) {
    const entries = await layerlab.get("recipes");
    const [model, a, b] = ["model", "a", "b"].map((name) => $(`#compare-${name}`));
    const models = [...new Set(entries.map((entry) => entry[2]))];
    model.append(...models.map((textContent) => make("option", { textContent })));
    const fill = () => {
      const own = entries.filter((entry) => entry[2] === model.value);
      for (const select of [a, b]) {
        const before = select.value, words = wordsOf($(`#${select.id}-search`).value);
        const options = own.filter((entry) => matches(entry[1].toLowerCase(), words)).map(([value, textContent, , items]) => make("option", { value, textContent: textContent + (items ? " (items kept)" : "") }));
        if (options.length) select.replaceChildren(...options);
        if (options.some((option) => option.value === before)) select.value = before;
      }
      if (a.value === b.value && b.options.length > 1) b.selectedIndex = a.selectedIndex ? 0 : 1;
    };
    const show = async () => {
      const load = (hash) => layerlab.get(hash, `${root}data/recipes/${hash}.js`);
      const [first, second] = await Promise.all([load(a.value), load(b.value)]);
      history.replaceState(null, "", `#a=${a.value}&b=${b.value}`);
      const link = (hash, content) => make("a", { href: `${root}recipes/${hash}.html`, textContent: content.title });
      $("#compare-links").replaceChildren("First: ", link(a.value, first), ". Second: ", link(b.value, second), ".");
      const head = ["Benchmark", "Value of", "First", "Second", "Difference", "95 % interval", "How", "Second is"];
      $("thead", table).replaceChildren(make("tr", {}, ...head.map((textContent, at) => make("th", { scope: "col", className: at < 2 || at > 5 ? "l" : "", textContent }))));
      const rows = [];
      for (const benchmark of Object.keys(first.values).filter((name) => name in second.values)) {
        for (const key of Object.keys(first.values[benchmark]).filter((name) => name in second.values[benchmark] && name !== "nll")) {
          const { cells, better } = compared(benchmark, key, first, second);
          const word = make("span", { className: `verdict ${["no", "", "yes"][better + 1]}`, textContent: ["✗ worse", "", "✓ better"][better + 1] });
          const row = make("tr", {}, make("th", { scope: "row", className: "l" }, ...breakable(benchmark)), make("td", { className: "l" }, ...breakable(key)));
          row.append(...cells.map((textContent, at) => make("td", { className: at === 4 ? "l" : "", textContent })), make("td", { className: "l" }, ...(better ? [word] : [])));
          [...row.cells].forEach((cell, at) => { cell.dataset.label = head[at]; });
          rows.push(row);
        }
      }
      if (!rows.length) rows.push(make("tr", {}, make("td", { className: "l", colSpan: head.length, textContent: "These two have no benchmark in common." })));
      $("tbody", table).replaceChildren(...rows);
    };
    // The model with most recipes whose items were kept.
    const kept = (name) => entries.filter((entry) => entry[2] === name && entry[3]).length;
    const fullest = models.reduce((best, name) => (kept(name) > kept(best) ? name : best));
    const follow = () => {
      const wanted = fragment(), known = (hash) => entries.find((entry) => entry[0] === hash);
      const standing = known(wanted.get("a")) ?? entries.find((entry) => entry[3] && entry[2] === fullest) ?? entries[0];
      model.value = standing[2];
      for (const select of [a, b]) $(`#${select.id}-search`).value = "";
      fill();
      a.value = standing[0];
      const other = known(wanted.get("b"));
      const beside = entries.find((entry) => entry[2] === model.value && entry[3] && entry[0] !== a.value);
      if (other && other[2] === model.value) b.value = other[0];
      else if (beside) b.value = beside[0];
      show();
    };
    model.oninput = () => { fill(); show(); };
    a.oninput = b.oninput = show;
    for (const select of [a, b]) $(`#${select.id}-search`).oninput = () => { const before = [a.value, b.value].join(); fill(); if ([a.value, b.value].join() !== before) show(); };
    $("#compare-swap").onclick = () => { [a.value, b.value] = [b.value, a.value]; show(); };
    addEventListener("hashchange", follow);
    follow();
  }

  $$("[data-tabs]").forEach(tabs);
  $$("[data-choices]").forEach(choices);
  $$("table[data-sortable]").forEach(sortable);
  $$("[data-row-filters]").forEach(rowFilters);
  filters();
  $$("[data-copy]").forEach(copying);
  // The data files come after this one.
  addEventListener("DOMContentLoaded", () => {
    if ($("#values")) values($("#values"));
    if ($("#compare")) comparing($("#compare"));
  });
})();
