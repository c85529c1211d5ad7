/* Scroll the contents in the margin to the current page. */
const current = document.querySelector(".sidebar-tree .current-page");
const margin = document.querySelector(".sidebar-scroll");
if (current && margin) {
    const top = current.getBoundingClientRect().top - margin.clientHeight / 2;
    margin.scrollBy({top, behavior: "instant"});
}
