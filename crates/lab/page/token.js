// The admin token: kept while the tab is open, and sent only to the page's own server.

const KEY = "tidegate-token";

/** Takes a token from the address, where the server's banner may have put it, and takes it out of there. */
export function tokenFromAddress() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return;
  keepToken(token);
  history.replaceState(null, "", location.pathname + location.search);
}

export function token() {
  return sessionStorage.getItem(KEY);
}

export function keepToken(token) {
  sessionStorage.setItem(KEY, token);
}

export function forgetToken() {
  sessionStorage.removeItem(KEY);
}

/** The headers of a request that may need it. */
export function authorization() {
  return token() ? { Authorization: `Bearer ${token()}` } : {};
}
