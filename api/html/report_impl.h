/* The parts of a report's page; all append to `out` and read what they were given with care. */
#ifndef MLO_HTML_REPORT_IMPL_H
#define MLO_HTML_REPORT_IMPL_H

#include <math.h>

#include "api/html/html.h"
#include "api/html/report.h"
#include "base/embed.h"

extern const struct mlo_embedded_file mlo_html_assets[];
extern const size_t mlo_html_assets_count;

/* More rows than this are not put into a page; the JSON has them. */
enum { MLO_PAGE_ROWS = 2000, MLO_PAGE_FIRST = 12 };

void mlo_report_part_precision(struct mlo_buf *out, const json_t *precision);
void mlo_report_part_tensors(struct mlo_buf *out, const json_t *tensors, const json_t *data);
void mlo_report_part_samples(struct mlo_buf *out, const json_t *samples, const json_t *data);

/* The body and the end of the page of a distillation evaluation (distill.c). */
void mlo_report_distill(struct mlo_buf *out, const json_t *report);

/* The share of multiply-adds (of nodes, where none are known) that integers have; NAN: there are no nodes.
 * *nodes: of which it is the share. */
double mlo_report_integer_share(const json_t *precision, int64_t *integer, int64_t *all, bool *of_macs);

/* A decibel number with a class by how good it is; a dash for NAN. */
void mlo_report_db_cell(struct mlo_buf *out, double db);
/* Begins and ends the part of a list that is folded away; `count` rows of it. Nothing when 0. */
void mlo_report_more_begin(struct mlo_buf *out, size_t count, const char *what);
void mlo_report_more_end(struct mlo_buf *out, size_t count);
/* "3 Dress", or "3" where classes have no names (`names`: an array, or NULL); a dash for what is no number.
 */
void mlo_report_class(struct mlo_buf *out, const json_t *names, const json_t *number);
/* Cells of a sample whose label is known: the label, and of both sides the class that it chose (member
 * "class"), right or wrong, beside how sure it was (member `score`: a share, in percent, or any number). */
void mlo_report_predictions(struct mlo_buf *out, const json_t *names, const json_t *sample,
                            const char *const sides[2], const char *score, bool share);
/* "and 12 more" for rows that a page does not show. */
void mlo_report_left_out(struct mlo_buf *out, size_t count);

/* Element i of a member that is an array of numbers; NAN when it is none. */
static inline double mlo_report_at(const json_t *object, const char *key, size_t i)
{
    const json_t *item = json_array_get(json_object_get(object, key), i);
    return json_is_number(item) ? json_number_value(item) : NAN;
}

#endif
