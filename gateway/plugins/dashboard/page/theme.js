// Loaded before the first paint, so that the other theme does not flash.
document.documentElement.dataset.theme = localStorage.getItem("reverie.theme") ?? "system";
