/* Which nodes run in which precision, and why the rest do not. */
#include <stdlib.h>
#include <string.h>

#include "api/html/report_impl.h"

/* The words of the JSON, in the order of the bar. */
static const struct {
    const char *word, *text;
} KINDS[] = {
    {"integer", "integers"},
    {"fused", "part of an integer node"},
    {"weights", "float with integer weights"},
    {"half", "half floats"},
    {"float", "floats"},
    {"other", "no floats: shapes, indices"},
};

double mlo_report_integer_share(const json_t *precision, int64_t *integer, int64_t *all, bool *of_macs)
{
    const json_t *sums = json_object_get(precision, "sums");
    double macs = 0, in_integers = 0;
    *integer = *all = 0;
    for (size_t k = 0; k < MLO_COUNT(KINDS); k++) {
        const json_t *sum = json_object_get(sums, KINDS[k].word);
        bool ints = k <= 1;
        macs += mlo_json_f64(sum, "macs", 0);
        in_integers += ints ? mlo_json_f64(sum, "macs", 0) : 0;
        *all += mlo_json_i64(sum, "nodes", 0);
        *integer += ints ? mlo_json_i64(sum, "nodes", 0) : 0;
    }
    *of_macs = macs > 0;
    if (macs > 0)
        return in_integers / macs;
    return *all > 0 ? (double)*integer / (double)*all : NAN;
}

/* The bar of multiply-adds. */
static void bar(struct mlo_buf *out, const json_t *sums, double macs)
{
    double at = 0;
    if (!(macs > 0))
        return;
    HTML(out, "<svg class=\"bar\" viewBox=\"0 0 1000 14\" preserveAspectRatio=\"none\" role=\"img\" "
              "aria-label=\"Multiply-adds by precision\">");
    for (size_t k = 0; k < MLO_COUNT(KINDS); k++) {
        double width = mlo_json_f64(json_object_get(sums, KINDS[k].word), "macs", 0) / macs * 1000;
        if (!(width > 0))
            continue;
        HTML(out, "<rect class=\"k-%s\" x=\"%.2f\" y=\"0\" width=\"%.2f\" height=\"14\"/>", KINDS[k].word, at,
             width);
        at += width;
    }
    HTML(out, "</svg>");
}

static void sums_table(struct mlo_buf *out, const json_t *sums, double macs)
{
    HTML(out, "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th>Runs in</th><th "
              "class=\"n\">Nodes</th><th "
              "class=\"n\">Multiply-adds</th><th class=\"n\">Weights</th></tr></thead><tbody>");
    for (size_t k = 0; k < MLO_COUNT(KINDS); k++) {
        const json_t *sum = json_object_get(sums, KINDS[k].word);
        char size[32];
        if (!mlo_json_i64(sum, "nodes", 0))
            continue;
        HTML(out, "<tr><td><span class=\"key k-%s\"></span>%s</td><td class=\"n\">%lld</td>", KINDS[k].word,
             KINDS[k].text, (long long)mlo_json_i64(sum, "nodes", 0));
        if (macs > 0)
            HTML(out, "<td class=\"n\">%.1f&nbsp;%%</td>", mlo_json_f64(sum, "macs", 0) / macs * 100);
        else
            HTML(out, "<td class=\"n\">–</td>");
        double bytes = mlo_json_f64(sum, "weight_bytes", 0);
        HTML(out, "<td class=\"n\">%s</td></tr>",
             bytes >= 0 && bytes < 1e18 ? mlo_str_size((uint64_t)bytes, size) : "–");
    }
    HTML(out, "</tbody></table></div>");
}

struct row {
    const json_t *node;
    size_t place; /* in the order of the graph */
};

static void node_row(struct mlo_buf *out, const json_t *node, double macs)
{
    double share = macs > 0 ? mlo_json_f64(node, "macs", 0) / macs * 100 : 0;
    HTML(out, "<tr><td class=\"name\"><code>%s</code></td><td>%s</td><td class=\"nowrap\">%s</td>",
         mlo_json_str(node, "node", ""), mlo_json_str(node, "op", ""), mlo_json_str(node, "precision", ""));
    if (share > 0)
        HTML(out, "<td class=\"n\">%.1f&nbsp;%%</td>", share);
    else
        HTML(out, "<td class=\"n\"></td>");
    HTML(out, "<td class=\"why\">%s</td></tr>", mlo_json_str(node, "why", ""));
}

static void node_rows(struct mlo_buf *out, const struct row *nodes, size_t from, size_t to, double macs)
{
    HTML(out, "<div class=\"scroll\" tabindex=\"0\"><table "
              "class=\"nodes\"><thead><tr><th>Node</th><th>Op</th><th>Precision</th><th "
              "class=\"n\">Multiply-adds</th><th>Why</th></tr></thead><tbody>");
    for (size_t i = from; i < to; i++)
        node_row(out, nodes[i].node, macs);
    HTML(out, "</tbody></table></div>");
}

/* Those that cost most first; the rest in the order of the graph. */
static int dearest_first(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    double p = mlo_json_f64(x->node, "macs", 0), q = mlo_json_f64(y->node, "macs", 0);
    if (p != q)
        return p > q ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

static size_t select_nodes(const json_t *all, bool floats, struct row *out)
{
    size_t count = 0, i;
    json_t *node;
    json_array_foreach((json_t *)all, i, node)
    {
        bool is_float = strcmp(mlo_json_str(node, "runs_in", ""), "float") == 0;
        if (is_float == floats && json_is_object(node))
            out[count++] = (struct row){node, i};
    }
    return count;
}

void mlo_report_part_precision(struct mlo_buf *out, const json_t *precision)
{
    const json_t *sums = json_object_get(precision, "sums"), *all = json_object_get(precision, "nodes");
    struct row *nodes = calloc(json_array_size(all) + 1, sizeof *nodes);
    double macs = 0;
    HTML(out, "<h2>Precision</h2><section class=\"panel\">");
    for (size_t k = 0; k < MLO_COUNT(KINDS); k++)
        macs += mlo_json_f64(json_object_get(sums, KINDS[k].word), "macs", 0);
    bar(out, sums, macs);
    sums_table(out, sums, macs);
    HTML(out, "</section>");
    size_t count = nodes ? select_nodes(all, true, nodes) : 0, first = MLO_MIN(count, (size_t)MLO_PAGE_FIRST),
           last = MLO_MIN(count, (size_t)MLO_PAGE_ROWS);
    if (count) {
        qsort(nodes, count, sizeof *nodes, dearest_first);
        HTML(out, "<h3>What stays in float, and why</h3><section class=\"panel\">");
        node_rows(out, nodes, 0, first, macs);
        mlo_report_more_begin(out, last - first, "nodes in float");
        if (last > first)
            node_rows(out, nodes, first, last, macs);
        mlo_report_more_end(out, last - first);
        mlo_report_left_out(out, count - last);
        HTML(out, "</section>");
    }
    count = nodes ? select_nodes(all, false, nodes) : 0;
    last = MLO_MIN(count, (size_t)MLO_PAGE_ROWS);
    if (count) {
        HTML(out, "<details class=\"panel\"><summary>%zu node%s that %s not stay in float</summary>", count,
             count == 1 ? "" : "s", count == 1 ? "does" : "do");
        node_rows(out, nodes, 0, last, macs);
        mlo_report_left_out(out, count - last);
        HTML(out, "</details>");
    }
    free(nodes);
}
