/* HTML that cannot forget to escape: the format is a literal (of the program, hence trusted), and every %s is
 * escaped. %d %i %u %x with l, ll, z; %f %g with flags, width and precision; %c escaped; %%. Nothing else. */
#ifndef MLO_HTML_HTML_H
#define MLO_HTML_HTML_H

#include "base/base.h"

/* HTML(out, "<td>%s</td>", text); concatenation with "" lets only a literal be the format. */
#define HTML(out, ...) mlo_html_printf((out), "" __VA_ARGS__)
void mlo_html_printf(struct mlo_buf *out, const char *fmt, ...) MLO_PRINTF(2, 3);
/* Appends text, escaped for element content and for quoted attributes. */
void mlo_html_escape(struct mlo_buf *out, const char *text);

#endif
