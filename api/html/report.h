/* The page of a report (docs/reports.md), or of a distillation evaluation (docs/distillation.md): one HTML
 * file that needs nothing else. */
#ifndef MLO_HTML_REPORT_H
#define MLO_HTML_REPORT_H

#include "base/base.h"

struct mlo_report_page {
    const char *title;                 /* what is explained: "fashion/cnn@1/int8-cpu" */
    const char *back_href, *back_text; /* a link above the title; NULL: none */
    const char *json_href;             /* where the JSON is; NULL: nowhere */
};

/* Appends the page. A JSON of another form is MLO_EFORMAT; a member of another type than it should have is
 * shown as if it were not there. */
MLO_MUST_USE enum mlo_status mlo_report_html(const json_t *report, const struct mlo_report_page *page,
                                             struct mlo_buf *out, struct mlo_error *err);
/* The source of the page's style for a Content-Security-Policy, "sha256-…" in base64, into the caller's
 * buffer, which is returned. */
char *mlo_report_style_source(char out[64]);

#endif
