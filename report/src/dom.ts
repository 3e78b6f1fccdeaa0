// Helpers for elements. Text of the data becomes text nodes only, never markup.

type Child = Node | string;

export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className = "",
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  if (className !== "") node.className = className;
  node.append(...children);
  return node;
}

export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  const node = document.getElementById(id);
  if (node === null) throw new Error(`the page has no element #${id}`);
  return node as T;
}

/** Returns a shortened name with the full name as its tooltip. */
export function nameTag(shown: string, full: string, className = "name"): HTMLElement {
  const tag = element("span", className, shown);
  if (shown !== full) tag.title = full.slice(0, 1000);
  return tag;
}

/** Must be called before other listeners of print events are added, because they call isOnPaper(). */
export function watchPrinting(): void {
  const { dataset } = document.documentElement;
  window.addEventListener("beforeprint", () => (dataset["paper"] = "true"));
  window.addEventListener("afterprint", () => delete dataset["paper"]);
}

/** Returns whether the page is being printed. */
export function isOnPaper(): boolean {
  return document.documentElement.dataset["paper"] !== undefined;
}

/** Returns the current value of a colour of style.css. */
export function colour(name: string): string {
  const probe = element("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

export function legendItem(kind: string, colourName: string, text: string): HTMLElement {
  const swatch = element("span", `swatch ${kind}`);
  swatch.style.setProperty("--swatch", `var(--${colourName})`);
  return element("span", "legend-item", swatch, text);
}
