/* A graph as SVG. Layered: every node stands one layer below the lowest of what it reads; edges over several
 * layers get a point in each; the order within a layer follows the mean position of the neighbours, and so do
 * the places. */
#include <stdlib.h>
#include <string.h>

#include "api/cli/local/local_impl.h"

enum {
    ROW = 86,
    BOX_HEIGHT = 50,
    GAP = 18,
    MARGIN = 24,
    LEGEND = 34,
    SWEEPS = 12,
    BOX_MIN = 96,
    BOX_MAX = 250
};

struct box {
    const struct mlo_node *node;   /* NULL: a port or a bend */
    const struct mlo_value *value; /* a port's */
    int layer, order, width;
    bool hidden;            /* a Constant: weights are not drawn either */
    double x, wish;         /* centre */
    int links[2], count[2]; /* into edges by end: first and how many, above (0) and below (1) */
};
struct edge {
    int from, to;
    const struct mlo_value *value;
};
struct drawing {
    const struct mlo_graph *graph;
    struct box *boxes;
    int box_count, box_cap;
    struct edge *edges; /* of neighbouring layers, after bends are in */
    int edge_count, edge_cap;
    int *near[2]; /* edge numbers, by the box at their lower and upper end */
    int **layers, *layer_size, layer_count;
};

static void *grow(void *list, int count, int *cap, size_t size)
{
    if (count < *cap)
        return list;
    *cap = *cap ? *cap * 2 : 256;
    void *bigger = realloc(list, (size_t)*cap * size);
    if (!bigger)
        free(list);
    return bigger;
}

static int add_box(struct drawing *d, struct box box)
{
    d->boxes = grow(d->boxes, d->box_count, &d->box_cap, sizeof *d->boxes);
    if (!d->boxes)
        return -1;
    d->boxes[d->box_count] = box;
    return d->box_count++;
}

static bool add_edge(struct drawing *d, int from, int to, const struct mlo_value *value)
{
    d->edges = grow(d->edges, d->edge_count, &d->edge_cap, sizeof *d->edges);
    if (d->edges)
        d->edges[d->edge_count++] = (struct edge){from, to, value};
    return d->edges != NULL;
}

static const struct mlo_node *outermost(const struct mlo_node *node, const struct mlo_graph *graph)
{
    while (node && node->graph != graph)
        node = node->graph->owner;
    return node;
}

static int text_width(const char *text, int each)
{
    return (int)MLO_MIN(strlen(text), 36) * each + 20;
}

static int box_width(const char *first, const char *second, const char *third)
{
    int wide = MLO_MAX(text_width(first, 8), MLO_MAX(text_width(second, 6), text_width(third, 6)));
    return MLO_MIN(MLO_MAX(wide, BOX_MIN), BOX_MAX);
}

static const struct mlo_value *first_output(const struct mlo_node *node)
{
    for (int o = 0; o < node->output_count; o++)
        if (node->outputs[o])
            return node->outputs[o];
    return NULL;
}

static void shape_text(const struct mlo_value *value, char *out, size_t size)
{
    char full[256];
    *out = '\0';
    if (value)
        snprintf(out, size, "%s", mlo_type_describe(&value->type, full, sizeof full));
}

/* One edge for each value that a box reads, however often. */
static bool link_users(struct drawing *d, int from, const struct mlo_value *value)
{
    int last = -1;
    for (int u = 0; u < value->use_count; u++) {
        const struct mlo_node *user = outermost(value->uses[u].node, d->graph);
        if (!user || user->index == last)
            continue;
        last = user->index;
        if (!add_edge(d, from, last, value))
            return false;
    }
    return true;
}

/* Boxes 0 … node_count - 1 are the nodes; ports come behind them. */
static bool collect(struct drawing *d)
{
    const struct mlo_graph *g = d->graph;
    for (int n = 0; n < g->node_count; n++) {
        char type[256];
        shape_text(first_output(g->nodes[n]), type, sizeof type);
        int width = box_width(g->nodes[n]->op_type, g->nodes[n]->name, type);
        if (add_box(d, (struct box){.node = g->nodes[n],
                                    .width = width,
                                    .layer = 1,
                                    .hidden = mlo_node_is(g->nodes[n], "Constant")}) < 0)
            return false;
    }
    for (int p = 0; p < g->input_count + g->output_count; p++) {
        bool input = p < g->input_count;
        const struct mlo_value *value = input ? g->inputs[p] : g->outputs[p - g->input_count];
        char type[256];
        if (input && value->constant)
            continue;
        shape_text(value, type, sizeof type);
        int at =
            add_box(d, (struct box){.value = value, .width = box_width(value->name, "", type), .layer = 0});
        if (at < 0 || (input && !link_users(d, at, value)))
            return false;
        if (!input && value->producer && !d->boxes[value->producer->index].hidden &&
            !add_edge(d, value->producer->index, at, value))
            return false;
    }
    for (int n = 0; n < g->node_count; n++)
        for (int o = 0; o < g->nodes[n]->output_count && !d->boxes[n].hidden; o++)
            if (g->nodes[n]->outputs[o] && !link_users(d, n, g->nodes[n]->outputs[o]))
                return false;
    return true;
}

static int by_from(const void *a, const void *b)
{
    const struct edge *x = a, *y = b;
    return x->from != y->from ? x->from - y->from : x->to - y->to;
}

static bool drawn(const struct drawing *d, const struct mlo_value *value)
{
    const struct mlo_node *from = value->producer;
    return !value->constant && !(from && from->graph == d->graph && d->boxes[from->index].hidden);
}

/* Longest paths; nodes stand in topological order, so one walk over the edges by their start does it once
 * ports are in place. What reads nothing moves down to just above its first reader. */
static void assign_layers(struct drawing *d)
{
    int nodes = d->graph->node_count;
    if (d->edge_count)
        qsort(d->edges, (size_t)d->edge_count, sizeof *d->edges, by_from);
    /* from nodes; inputs stand at layer 0 and push nobody below 1 */
    for (int e = 0; e < d->edge_count; e++) {
        struct edge *edge = &d->edges[e];
        if (edge->from < nodes)
            d->boxes[edge->to].layer = MLO_MAX(d->boxes[edge->to].layer, d->boxes[edge->from].layer + 1);
    }
    for (int b = 0; b < d->box_count; b++) {
        bool reads = false;
        int lowest = INT32_MAX;
        for (int i = 0; d->boxes[b].node && i < d->boxes[b].node->input_count; i++)
            reads = reads || (d->boxes[b].node->inputs[i] && drawn(d, d->boxes[b].node->inputs[i]));
        if (reads || (b >= nodes && !d->boxes[b].value->is_input))
            continue;
        for (int e = 0; e < d->edge_count; e++)
            if (d->edges[e].from == b)
                lowest = MLO_MIN(lowest, d->boxes[d->edges[e].to].layer);
        if (lowest < INT32_MAX)
            d->boxes[b].layer = lowest - 1;
    }
    for (int b = 0; b < d->box_count; b++)
        d->layer_count = MLO_MAX(d->layer_count, d->boxes[b].layer + 1);
}

/* Replaces long edges by chains over bends. */
static bool add_bends(struct drawing *d)
{
    int count = d->edge_count;
    for (int e = 0; e < count; e++) {
        struct edge edge = d->edges[e];
        int from = edge.from, last = d->boxes[edge.to].layer;
        for (int layer = d->boxes[from].layer + 1; layer < last; layer++) {
            int bend = add_box(d, (struct box){.layer = layer, .width = 8});
            if (bend < 0)
                return false;
            if (from == edge.from)
                d->edges[e].to = bend;
            else if (!add_edge(d, from, bend, edge.value))
                return false;
            from = bend;
        }
        if (from != edge.from && !add_edge(d, from, edge.to, edge.value))
            return false;
    }
    return true;
}

static bool index_edges(struct drawing *d)
{
    for (int side = 0; side < 2; side++) {
        d->near[side] = calloc((size_t)d->edge_count + 1, sizeof **d->near);
        if (!d->near[side])
            return false;
        int at = 0;
        for (int e = 0; e < d->edge_count; e++)
            d->boxes[side ? d->edges[e].from : d->edges[e].to].count[side]++;
        for (int b = 0; b < d->box_count; b++) {
            d->boxes[b].links[side] = at;
            at += d->boxes[b].count[side];
            d->boxes[b].count[side] = 0;
        }
        for (int e = 0; e < d->edge_count; e++) {
            struct box *b = &d->boxes[side ? d->edges[e].from : d->edges[e].to];
            d->near[side][b->links[side] + b->count[side]++] = side ? d->edges[e].to : d->edges[e].from;
        }
    }
    d->layers = calloc((size_t)d->layer_count + 1, sizeof *d->layers);
    d->layer_size = calloc((size_t)d->layer_count + 1, sizeof *d->layer_size);
    if (!d->layers || !d->layer_size)
        return false;
    for (int b = 0; b < d->box_count; b++)
        d->layer_size[d->boxes[b].layer] += !d->boxes[b].hidden;
    for (int l = 0; l < d->layer_count; l++) {
        if (!(d->layers[l] = calloc((size_t)d->layer_size[l] + 1, sizeof **d->layers)))
            return false;
        d->layer_size[l] = 0;
    }
    for (int b = 0; b < d->box_count; b++) {
        int l = d->boxes[b].layer;
        if (d->boxes[b].hidden)
            continue;
        d->boxes[b].order = d->layer_size[l];
        d->layers[l][d->layer_size[l]++] = b;
    }
    return true;
}

/* The mean of the neighbours' positions or places on one side; its own where it has none. */
static double mean(const struct drawing *d, const struct box *b, int side, bool places)
{
    double sum = 0;
    for (int i = 0; i < b->count[side]; i++) {
        const struct box *n = &d->boxes[d->near[side][b->links[side] + i]];
        sum += places ? n->x : n->order;
    }
    return b->count[side] ? sum / b->count[side] : places ? b->x : b->order;
}

/* Insertion: layers are short, or nearly sorted. */
static void sort_layer(struct drawing *d, int layer)
{
    int *list = d->layers[layer];
    for (int i = 1; i < d->layer_size[layer]; i++) {
        int item = list[i], k = i;
        for (; k > 0 && d->boxes[list[k - 1]].wish > d->boxes[item].wish; k--)
            list[k] = list[k - 1];
        list[k] = item;
    }
    for (int i = 0; i < d->layer_size[layer]; i++)
        d->boxes[list[i]].order = i;
}

static double apart(const struct box *a, const struct box *b)
{
    return (a->width + b->width) / 2.0 + GAP;
}

/* As near to the wishes as order and width allow: the mean of what comes out from the left and from the
 * right. */
static void place_layer(struct drawing *d, int layer)
{
    int count = d->layer_size[layer];
    const int *list = d->layers[layer];
    for (int i = 0; i < count; i++) {
        struct box *b = &d->boxes[list[i]];
        b->x = i ? MLO_MAX(b->wish, d->boxes[list[i - 1]].x + apart(&d->boxes[list[i - 1]], b)) : b->wish;
    }
    double next = 0;
    for (int i = count - 1; i >= 0; i--) {
        struct box *b = &d->boxes[list[i]];
        double right = i < count - 1 ? MLO_MIN(b->wish, next - apart(b, &d->boxes[list[i + 1]])) : b->wish;
        next = right;
        b->x = (b->x + right) / 2;
    }
}

static void sweep(struct drawing *d, bool places)
{
    for (int round = 0; round < SWEEPS; round++) {
        int side = round % 2;
        for (int i = 0; i < d->layer_count; i++) {
            int layer = side ? d->layer_count - 1 - i : i;
            for (int k = 0; k < d->layer_size[layer]; k++) {
                struct box *b = &d->boxes[d->layers[layer][k]];
                b->wish = mean(d, b, side, places);
                if (places && round >= SWEEPS - 2 && b->count[!side]) /* settle between both sides */
                    b->wish = (b->wish + mean(d, b, !side, true)) / 2;
            }
            if (places)
                place_layer(d, layer);
            else
                sort_layer(d, layer);
        }
    }
}

static double lay_out(struct drawing *d)
{
    double least = 1e9, most = 0;
    sweep(d, false);
    for (int l = 0; l < d->layer_count; l++)
        for (int i = 0; i < d->layer_size[l]; i++) {
            struct box *b = &d->boxes[d->layers[l][i]];
            b->x = b->wish =
                i ? d->boxes[d->layers[l][i - 1]].x + apart(&d->boxes[d->layers[l][i - 1]], b) : 0;
        }
    sweep(d, true);
    for (int b = 0; b < d->box_count; b++)
        if (!d->boxes[b].hidden)
            least = MLO_MIN(least, d->boxes[b].x - d->boxes[b].width / 2.0);
    for (int b = 0; b < d->box_count; b++) {
        if (d->boxes[b].hidden)
            continue;
        d->boxes[b].x += MARGIN - least;
        most = MLO_MAX(most, d->boxes[b].x + d->boxes[b].width / 2.0);
    }
    return most + MARGIN;
}

/* --- drawing ----------------------------------------------------------------------------------------------
 */

static void put_escaped(struct mlo_buf *out, const char *text, size_t most)
{
    size_t length = strlen(text);
    if (length > most) /* the end of a name tells more than its beginning */
        text += length - most + 1;
    mlo_buf_printf(out, "%s", length > most ? "…" : "");
    for (; *text; text++)
        switch (*text) {
        case '<':
            mlo_buf_printf(out, "&lt;");
            break;
        case '>':
            mlo_buf_printf(out, "&gt;");
            break;
        case '&':
            mlo_buf_printf(out, "&amp;");
            break;
        case '"':
            mlo_buf_printf(out, "&quot;");
            break;
        default:
            mlo_buf_putc(out, (unsigned char)*text < 32 ? ' ' : *text);
        }
}

static const struct kind {
    const char *class, *label, *fill, *line;
} kinds[] = {
    {"p", "input, output", "#f3f4f6", "#4b5563"}, {"m", "multiply-adds", "#dbeafe", "#1d4ed8"},
    {"e", "elementwise", "#dcfce7", "#15803d"},   {"v", "moves data", "#fefce8", "#a16207"},
    {"q", "quantization", "#ffedd5", "#c2410c"},  {"o", "other", "#ede9fe", "#6d28d9"},
    {"u", "not supported", "#fee2e2", "#b91c1c"},
};
enum { KIND_PORT, KIND_MAC, KIND_ELEMENTWISE, KIND_MOVE, KIND_QUANTIZE, KIND_OTHER, KIND_UNSUPPORTED };

static int kind_of(const struct mlo_node *node)
{
    if (!node->op)
        return KIND_UNSUPPORTED;
    if (strstr(node->op_type, "QuantizeLinear") || strstr(node->op_type, "Quantize"))
        return KIND_QUANTIZE;
    if (node->op->flags & (MLO_OP_FLOPS_MAC | MLO_OP_WEIGHTED))
        return KIND_MAC;
    if (strcmp(node->op_type, "Concat") == 0 ||
        (node->op->flags & MLO_OP_RANGE_KEEP && !strstr(node->op_type, "Pool")))
        return KIND_MOVE;
    return node->op->flags & MLO_OP_ELEMENTWISE ? KIND_ELEMENTWISE : KIND_OTHER;
}

static double top_of(const struct box *b)
{
    return LEGEND + MARGIN + (double)b->layer * ROW;
}

static void put_edge(const struct drawing *d, const struct edge *e, struct mlo_buf *out)
{
    const struct box *a = &d->boxes[e->from], *b = &d->boxes[e->to];
    bool bend_a = !a->node && !a->value, bend_b = !b->node && !b->value;
    double y1 = top_of(a) + (bend_a ? BOX_HEIGHT / 2.0 : BOX_HEIGHT),
           y2 = top_of(b) + (bend_b ? BOX_HEIGHT / 2.0 : 0);
    double middle = (y1 + y2) / 2;
    mlo_buf_printf(out, "<path d=\"M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f\"%s/>\n", a->x, y1, a->x, middle,
                   b->x, middle, b->x, y2, bend_b ? "" : " marker-end=\"url(#a)\"");
}

static void put_line(struct mlo_buf *out, const struct box *b, double y, const char *class, const char *text)
{
    if (!*text)
        return;
    mlo_buf_printf(out, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">", class, b->x, y);
    put_escaped(out, text, *class == 't' ? 28 : 38);
    mlo_buf_printf(out, "</text>");
}

static void put_weights(struct mlo_buf *out, const struct mlo_node *node)
{
    for (int i = 0; i < node->input_count; i++) {
        char type[256];
        if (!node->inputs[i] || !node->inputs[i]->constant)
            continue;
        mlo_buf_printf(out, "\n");
        put_escaped(out, node->inputs[i]->name, 80);
        mlo_buf_printf(out, " %s", mlo_type_describe(&node->inputs[i]->type, type, sizeof type));
    }
}

static void put_box(const struct box *b, struct mlo_buf *out)
{
    char type[256];
    double y = top_of(b);
    if (b->hidden || (!b->node && !b->value))
        return;
    int kind = b->node ? kind_of(b->node) : KIND_PORT;
    const char *title = b->node ? b->node->op_type : b->value->name;
    shape_text(b->node ? first_output(b->node) : b->value, type, sizeof type);
    mlo_buf_printf(out, "<g class=\"%s\"><title>", kinds[kind].class);
    put_escaped(out, b->node ? b->node->name : b->value->name, 200);
    mlo_buf_printf(out, ": ");
    put_escaped(out, type, 200);
    if (b->node)
        put_weights(out, b->node);
    mlo_buf_printf(out, "</title><rect x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"%d\" rx=\"%d\"/>",
                   b->x - b->width / 2.0, y, b->width, BOX_HEIGHT, b->node ? 6 : 25);
    put_line(out, b, y + 17, "t", title);
    put_line(out, b, y + 31, "n", b->node ? b->node->name : b->value->is_input ? "input" : "output");
    put_line(out, b, y + 43, "s", type);
    mlo_buf_printf(out, "</g>\n");
}

static void put_legend(struct mlo_buf *out)
{
    int x = MARGIN;
    for (size_t k = 0; k < MLO_COUNT(kinds); k++) {
        mlo_buf_printf(
            out,
            "<g class=\"%s\"><rect x=\"%d\" y=\"12\" width=\"14\" height=\"14\" rx=\"3\"/><text class=\"l\" "
            "x=\"%d\" y=\"23\">%s</text></g>\n",
            kinds[k].class, x, x + 20, kinds[k].label);
        x += 34 + 7 * (int)strlen(kinds[k].label);
    }
}

static void put_all(const struct drawing *d, double width, struct mlo_buf *out)
{
    int height = LEGEND + 2 * MARGIN + d->layer_count * ROW - (ROW - BOX_HEIGHT);
    mlo_buf_printf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%d\" viewBox=\"0 0 %.0f %d\" "
        "font-family=\"system-ui, sans-serif\">\n<title>",
        width, height, width, height);
    put_escaped(out, d->graph->name, 100);
    mlo_buf_printf(out,
                   "</title>\n<style>text{text-anchor:middle;fill:#111827}.t{font-size:13px;font-weight:600}"
                   ".n{font-size:10px;fill:#4b5563}.s{font-size:10px}.l{font-size:12px;text-anchor:start}"
                   "path{fill:none;stroke:#6b7280;stroke-width:1.2}#a path{fill:#6b7280;stroke:none}");
    for (size_t k = 0; k < MLO_COUNT(kinds); k++)
        mlo_buf_printf(out, ".%s rect{fill:%s;stroke:%s}", kinds[k].class, kinds[k].fill, kinds[k].line);
    mlo_buf_printf(
        out, "</style>\n<defs><marker id=\"a\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" "
             "markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\"/></marker></defs>\n"
             "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n");
    put_legend(out);
    for (int e = 0; e < d->edge_count; e++)
        put_edge(d, &d->edges[e], out);
    for (int b = 0; b < d->box_count; b++)
        put_box(&d->boxes[b], out);
    mlo_buf_printf(out, "</svg>\n");
}

enum mlo_status mlo_local_draw(const struct mlo_graph *graph, struct mlo_buf *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct drawing d = {.graph = graph};
    bool ok = collect(&d);
    if (ok) {
        assign_layers(&d);
        ok = add_bends(&d) && index_edges(&d);
    }
    if (ok) {
        double width = lay_out(&d); /* the macro would lay it out twice */
        put_all(&d, MLO_MAX(width, 700.0), out);
    }
    if (!ok || !mlo_buf_ok(out))
        status = mlo_error_nomem(err);
    for (int l = 0; d.layers && l < d.layer_count; l++)
        free(d.layers[l]);
    free(d.layers);
    free(d.layer_size);
    free(d.near[0]);
    free(d.near[1]);
    free(d.boxes);
    free(d.edges);
    return status;
}
