// Small helpers. Text from the data goes through textContent only.

type Child = Node | string;

export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className = "",
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  if (className !== "") made.className = className;
  made.append(...children);
  return made;
}

export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no element #${id}`);
  return found as T;
}

/** A name in full as its title, shown with its middle left out where it is long. */
export function nameTag(shown: string, full: string, className = "name"): HTMLElement {
  const tag = element("span", className, shown);
  if (shown !== full) tag.title = full.slice(0, 1000);
  return tag;
}

/** Before anything else listens to printing, so that all of it finds out in time. */
export function watchPrinting(): void {
  const { dataset } = document.documentElement;
  window.addEventListener("beforeprint", () => (dataset["paper"] = "true"));
  window.addEventListener("afterprint", () => delete dataset["paper"]);
}

/** Whether the page is being printed. */
export function isOnPaper(): boolean {
  return document.documentElement.dataset["paper"] !== undefined;
}

/** What a colour of style.css is now. */
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
