// The theme: light, dark, or the system's.

import { forgetPalette } from "./canvas.js";
import { byId, h } from "./dom.js";

const THEMES = ["system", "light", "dark"];
const SIGNS = { system: "◐", light: "○", dark: "●" };
const KEY = "tidegate-theme";

/** Follows the switch and the system; `changed` is called when colours have. */
export function themes(changed) {
  const button = byId("theme");
  let theme = THEMES.includes(localStorage.getItem(KEY)) ? localStorage.getItem(KEY) : "system";
  const show = () => {
    document.documentElement.dataset.theme = theme;
    // A phone has room for the sign alone.
    button.replaceChildren(SIGNS[theme], h("span", {}, ` ${theme}`));
    button.setAttribute("aria-label", `Theme: ${theme}`);
    forgetPalette();
    changed();
  };
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    localStorage.setItem(KEY, theme);
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
}
