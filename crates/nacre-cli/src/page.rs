//! What pages for a browser have in common: one file each, nothing to load, light or dark.

use crate::plot::escape;

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}\
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2.5rem}code{background:#8882;padding:.1rem .3rem}\
pre{white-space:pre-wrap;background:#f4f5f7;padding:.8rem;border-radius:6px}\
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}\
td,th{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #8883}td:first-child,th:first-child{text-align:left}\
svg{display:block;width:100%;height:auto}.chart{max-width:800px;color:inherit}.paper{fill:none}.map{border-radius:6px;margin:1rem 0}\
.beside{display:grid;grid-template-columns:repeat(auto-fit,minmax(24rem,1fr));gap:0 1rem}\
a{color:#2f62c8}.good{color:#1a7f37}.bad{color:#c22f2f}.warn{background:#fff1d6;color:#5b3c00;padding:.8rem;border-radius:6px}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#15171a}pre{background:#22252a}a{color:#8ab4f8}.good{color:#5fd07a}.bad{color:#ff7b72}}";

/// All in front of what a page says; `style` is what it needs besides.
pub fn head(title: &str, style: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{0}</title>\
         <style>{STYLE}{style}</style><h1>{0}</h1>\n",
        escape(title)
    )
}
