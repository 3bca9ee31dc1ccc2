/* Numbers and names of the page of a distillation evaluation. */
#include <string.h>

#include "api/html/distill_impl.h"

const char *const mlo_distill_sides[] = {"teacher", "student"};

/* A dash, and why there is no number where the report says so. */
static void no_number(struct mlo_buf *out, const json_t *e)
{
    const char *why = mlo_json_str(e, "missing", NULL);
    HTML(out, MLO_DASH);
    if (why)
        HTML(out, " <small>%s</small>", why);
}

bool mlo_distill_is_share(const json_t *row)
{
    return strcmp(mlo_json_str(row, "unit", ""), "fraction") == 0;
}

void mlo_distill_value(struct mlo_buf *out, const json_t *e, bool share)
{
    double v = mlo_distill_number(e, "value"), low = mlo_distill_number(e, "low"),
           high = mlo_distill_number(e, "high");
    if (isnan(v))
        no_number(out, e);
    else if (share)
        HTML(out, "%.2f&nbsp;%% <small>%.2f–%.2f</small>", 100 * v, 100 * low, 100 * high);
    else
        HTML(out, "%.4g <small>%.4g–%.4g</small>", v, low, high);
}

/* `better` says which way is good: 1 up, -1 down, 0 neither. */
void mlo_distill_difference(struct mlo_buf *out, const json_t *e, bool share, int better)
{
    double v = mlo_distill_number(e, "value"), low = mlo_distill_number(e, "low"),
           high = mlo_distill_number(e, "high");
    bool lost = better && (better > 0 ? high < 0 : low > 0),
         won = better && (better > 0 ? low > 0 : high < 0);
    if (isnan(v)) {
        no_number(out, e);
        return;
    }
    HTML(out, "<b class=\"%s\">", lost ? "lost" : won ? "won" : "");
    if (share)
        HTML(out, "%+.2f&nbsp;pt</b> <small>%+.2f to %+.2f</small>", 100 * v, 100 * low, 100 * high);
    else
        HTML(out, "%+.4g</b> <small>%+.4g to %+.4g</small>", v, low, high);
}

void mlo_distill_ratio(struct mlo_buf *out, const json_t *e)
{
    double v = mlo_distill_number(e, "value");
    if (isnan(v))
        no_number(out, e);
    else
        HTML(out, "<b>%.3g×</b> <small>%.3g–%.3g</small>", v, mlo_distill_number(e, "low"),
             mlo_distill_number(e, "high"));
}

void mlo_distill_p_cell(struct mlo_buf *out, double p)
{
    if (isnan(p))
        HTML(out, "<td class=\"n\">" MLO_DASH "</td>");
    else
        HTML(out, "<td class=\"n\">%.3g</td>", p);
}

void mlo_distill_time(struct mlo_buf *out, double us)
{
    if (isnan(us))
        HTML(out, MLO_DASH);
    else if (us < 1000)
        HTML(out, "%.3g&nbsp;µs", us);
    else
        HTML(out, "%.3g&nbsp;ms", us / 1000);
}

void mlo_distill_bytes(struct mlo_buf *out, const json_t *side)
{
    char text[32];
    int64_t bytes = mlo_json_i64(side, "file_bytes", -1);
    if (bytes < 0)
        HTML(out, MLO_DASH);
    else
        HTML(out, "%s", mlo_str_size((uint64_t)bytes, text));
}

/* "3 Dress", or "3" where classes have no names. */
