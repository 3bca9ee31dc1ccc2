/* What the files of the page of a distillation evaluation share. Everything appends to `out`; a number that
 * is not there is a dash, with the reason where the report gives one. */
#ifndef MLO_HTML_DISTILL_IMPL_H
#define MLO_HTML_DISTILL_IMPL_H

#include "api/html/report_impl.h"

#define MLO_DASH "<span class=\"muted\">–</span>"

extern const char *const mlo_distill_sides[]; /* "teacher", "student" */

static inline const json_t *mlo_distill_in(const json_t *o, const char *a, const char *b)
{
    o = json_object_get(o, a);
    return b ? json_object_get(o, b) : o;
}
static inline double mlo_distill_number(const json_t *o, const char *key)
{
    return mlo_json_f64(o, key, NAN);
}

/* Whether the row's unit is a share, which is shown in percent. */
bool mlo_distill_is_share(const json_t *row);
/* An estimate with its interval. */
void mlo_distill_value(struct mlo_buf *out, const json_t *e, bool share);
/* `better` says which way is good: 1 up, -1 down, 0 neither. */
void mlo_distill_difference(struct mlo_buf *out, const json_t *e, bool share, int better);
void mlo_distill_ratio(struct mlo_buf *out, const json_t *e);
/* A cell with a p-value; NAN: there is none. */
void mlo_distill_p_cell(struct mlo_buf *out, double p);
void mlo_distill_time(struct mlo_buf *out, double us);
/* The size of a side's file. */
void mlo_distill_bytes(struct mlo_buf *out, const json_t *side);

/* The parts of distill_parts.c. Nothing where the report has nothing of the kind. */
void mlo_distill_part_calibration(struct mlo_buf *out, const json_t *r);
/* The list `member`, whose rows are named by `key` ("class" or "slice"). */
void mlo_distill_part_groups(struct mlo_buf *out, const json_t *r, const char *member, const char *key,
                             const char *title);
void mlo_distill_part_confusion(struct mlo_buf *out, const json_t *r);
void mlo_distill_part_farthest(struct mlo_buf *out, const json_t *r);

#endif
