/* A profile as a flame graph: width is time, rows are the scopes of node names ("/layer1/0/conv/Conv"), in
 * order of execution from left to right. One SVG, nothing beside it. */
#include <stdlib.h>
#include <string.h>

#include "api/cli/local/local_impl.h"

enum {
    WIDTH = 1280,
    MARGIN = 16,
    ROW = 24,
    TOP = 62,
    DEPTH_MAX = 12,
    LETTER = 7, /* of a label, in pixels, on average */
};

/* A scope, or a node at the end of one. */
struct block {
    char label[96];
    const json_t *node; /* NULL: a scope */
    double us;
    int parent, first, last, next; /* indices; -1: none */
    int depth;
};

struct flame {
    struct block *blocks;
    int count, cap, deepest;
    bool by_op; /* no node's name has a scope */
};

struct colour {
    const char *label, *fill;
};
enum { INT8_PRODUCT, PRODUCT, ELEMENTWISE, NORMALIZE, MOVE, QUANTIZE, OTHER, SCOPE, COLOURS };
static const struct colour colours[COLOURS] = {
    [INT8_PRODUCT] = {"products in int8", "#7fc8a9"},
    [PRODUCT] = {"products", "#f4a261"},
    [ELEMENTWISE] = {"elementwise", "#f6d55c"},
    [NORMALIZE] = {"normalization, softmax, pooling", "#b8a1e3"},
    [MOVE] = {"moves data", "#b7c0cc"},
    [QUANTIZE] = {"quantization", "#8ecae6"},
    [OTHER] = {"other", "#e5989b"},
    [SCOPE] = {"scope", "#eef1f5"},
};

/* Ops by kind; what is not here is "other". */
static const struct {
    const char *op;
    int colour;
} kinds[] = {
    {"Attention", PRODUCT},
    {"AveragePool", NORMALIZE},
    {"BatchNormalization", NORMALIZE},
    {"Concat", MOVE},
    {"Conv", PRODUCT},
    {"ConvTranspose", PRODUCT},
    {"DequantizeLinear", QUANTIZE},
    {"Flatten", MOVE},
    {"GRU", PRODUCT},
    {"Gather", MOVE},
    {"Gemm", PRODUCT},
    {"GlobalAveragePool", NORMALIZE},
    {"LSTM", PRODUCT},
    {"LayerNormalization", NORMALIZE},
    {"MatMul", PRODUCT},
    {"MaxPool", NORMALIZE},
    {"Pad", MOVE},
    {"QuantizeLinear", QUANTIZE},
    {"ReduceMean", NORMALIZE},
    {"Reorder", MOVE},
    {"Reshape", MOVE},
    {"Resize", MOVE},
    {"Slice", MOVE},
    {"Softmax", NORMALIZE},
    {"Split", MOVE},
    {"Transpose", MOVE},
    {"Add", ELEMENTWISE},
    {"Clip", ELEMENTWISE},
    {"Div", ELEMENTWISE},
    {"Erf", ELEMENTWISE},
    {"Gelu", ELEMENTWISE},
    {"HardSigmoid", ELEMENTWISE},
    {"HardSwish", ELEMENTWISE},
    {"LeakyRelu", ELEMENTWISE},
    {"Mul", ELEMENTWISE},
    {"Pow", ELEMENTWISE},
    {"Relu", ELEMENTWISE},
    {"Sigmoid", ELEMENTWISE},
    {"Sqrt", ELEMENTWISE},
    {"Sub", ELEMENTWISE},
    {"Tanh", ELEMENTWISE},
};

static int colour_of(const struct block *b)
{
    if (!b->node)
        return SCOPE;
    const char *op = mlo_json_str(b->node, "op", "");
    int colour = OTHER;
    for (size_t i = 0; i < MLO_COUNT(kinds); i++)
        if (strcmp(kinds[i].op, op) == 0)
            colour = kinds[i].colour;
    bool int8 = strcmp(mlo_json_str(b->node, "precision", ""), "int8") == 0;
    return colour == PRODUCT && int8 ? INT8_PRODUCT : colour;
}

/* --- the tree ------------------------------------------------------------------------------------------- */

/* How much of a text, at most so many bytes, ends with a whole letter. */
static size_t whole_letters(const char *text, size_t len, size_t most)
{
    if (len <= most)
        return len;
    while (most && ((unsigned char)text[most] & 0xc0) == 0x80)
        most--;
    return most;
}

static int add_block(struct flame *f, int parent, const char *label, size_t len, const json_t *node)
{
    if (f->count == f->cap) {
        int cap = f->cap ? f->cap * 2 : 256;
        struct block *more = realloc(f->blocks, (size_t)cap * sizeof *more);
        if (!more)
            return -1;
        f->blocks = more;
        f->cap = cap;
    }
    int i = f->count++;
    struct block *b = &f->blocks[i];
    *b = (struct block){.node = node, .parent = parent, .first = -1, .last = -1, .next = -1};
    snprintf(b->label, sizeof b->label, "%.*s", (int)whole_letters(label, len, sizeof b->label - 1), label);
    if (parent >= 0) {
        struct block *p = &f->blocks[parent];
        b->depth = p->depth + 1;
        if (p->last >= 0)
            f->blocks[p->last].next = i;
        else
            p->first = i;
        p->last = i;
    }
    f->deepest = MLO_MAX(f->deepest, b->depth);
    return i;
}

/* The scope of that name that was opened last in its parent: a scope that is entered again later is another
 * block, so that left to right stays the order of execution. */
static int enter(struct flame *f, int parent, const char *label, size_t len)
{
    int last = f->blocks[parent].last;
    size_t kept = whole_letters(label, len, sizeof f->blocks->label - 1);
    if (last >= 0 && !f->blocks[last].node && strlen(f->blocks[last].label) == kept &&
        strncmp(f->blocks[last].label, label, kept) == 0)
        return last;
    return add_block(f, parent, label, len, NULL);
}

/* Scopes are what stands between slashes; exporters of PyTorch repeat the path in the last of them
 * ("/layer1/layer1.0/conv1/Conv"), which is cut. */
static int enter_scopes(struct flame *f, const char **name)
{
    const char *outer = "";
    size_t outer_len = 0;
    int at = 0;
    *name += **name == '/';
    for (const char *slash; at >= 0 && (slash = strchr(*name, '/')) && f->blocks[at].depth < DEPTH_MAX;
         *name = slash + 1) {
        size_t len = (size_t)(slash - *name);
        const char *shown = *name;
        if (outer_len && len > outer_len + 1 && strncmp(shown, outer, outer_len) == 0 &&
            shown[outer_len] == '.')
            shown += outer_len + 1;
        at = enter(f, at, shown, len - (size_t)(shown - *name));
        outer = *name;
        outer_len = len;
    }
    return at;
}

/* The block of all nodes of an op. */
static int enter_op(struct flame *f, const char *op)
{
    for (int i = f->blocks[0].first; i >= 0; i = f->blocks[i].next)
        if (strcmp(f->blocks[i].label, op) == 0)
            return i;
    return add_block(f, 0, op, strlen(op), NULL);
}

static bool add_node(struct flame *f, const json_t *node)
{
    const char *name = mlo_json_str(node, "node", ""), *op = mlo_json_str(node, "op", "");
    double us = mlo_json_f64(node, "us", 0);
    int at = f->by_op ? enter_op(f, op) : enter_scopes(f, &name);
    if (at < 0)
        return false;
    char label[96];
    bool named = *name && strncmp(name, op, strlen(op)) != 0;
    snprintf(label, sizeof label, "%.33s%s%.*s", f->by_op && *name ? "" : op, named && !f->by_op ? "  " : "",
             (int)whole_letters(name, strlen(name), 60), named || f->by_op ? name : "");
    int leaf = add_block(f, at, label, strlen(label), node);
    for (int i = leaf; i >= 0; i = f->blocks[i].parent)
        f->blocks[i].us += us;
    return leaf >= 0;
}

/* --- drawing -------------------------------------------------------------------------------------------- */

static void put_text(struct mlo_buf *out, const char *text, size_t most)
{
    static const char *const names[] = {['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['"'] = "&quot;"};
    size_t len = strlen(text), shown = len > most ? whole_letters(text, len, most - 1) : len;
    for (size_t i = 0; i < shown; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < MLO_COUNT(names) && names[c])
            mlo_buf_puts(out, names[c]);
        else
            mlo_buf_putc(out, c < 0x20 ? ' ' : (char)c);
    }
    if (shown < len)
        mlo_buf_puts(out, "…");
}

static void put_title(struct mlo_buf *out, const struct block *b, double total)
{
    char took[32];
    const json_t *n = b->node;
    mlo_buf_puts(out, "<title>");
    put_text(out, n ? mlo_json_str(n, "node", "") : b->label, 200);
    mlo_buf_printf(out, "\n%s, %.1f%%", mlo_cli_duration(b->us, took), total > 0 ? 100 * b->us / total : 0);
    if (n) {
        mlo_buf_puts(out, "\n");
        put_text(out, mlo_json_str(n, "op", ""), 60);
        mlo_buf_puts(out, " by ");
        put_text(out, mlo_json_str(n, "impl", ""), 80);
        mlo_buf_puts(out, ", ");
        put_text(out, mlo_json_str(n, "precision", ""), 30);
        for (size_t i = 0; i < json_array_size(json_object_get(n, "fused")); i++) {
            const json_t *fused = json_array_get(json_object_get(n, "fused"), i);
            mlo_buf_puts(out, i ? ", " : "\nwith ");
            put_text(out, json_is_string(fused) ? json_string_value(fused) : "", 100);
        }
        if (json_object_get(n, "peak"))
            mlo_buf_printf(out, "\n%.1f Gop/s, %.1f operations a byte: %s bound, %.0f%% of the roof",
                           b->us > 0 ? (double)mlo_json_i64(n, "flops", 0) / b->us * 1e-3 : 0,
                           mlo_json_f64(n, "intensity", 0), mlo_json_str(n, "bound", ""),
                           100 * mlo_json_f64(n, "peak", 0));
    }
    mlo_buf_puts(out, "</title>");
}

static void put_block(const struct flame *f, int index, double x, double scale, struct mlo_buf *out)
{
    const struct block *b = &f->blocks[index];
    double width = b->us * scale, y = TOP + (double)b->depth * ROW;
    if (width < 0.2)
        return;
    mlo_buf_printf(out, "<g>");
    put_title(out, b, f->blocks[0].us);
    mlo_buf_printf(out, "<rect x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%d\" class=\"c%d\"/>", x, y,
                   MLO_MAX(width - 0.6, 0.2), ROW - 2, colour_of(b));
    size_t letters = (size_t)(width - 8 > 0 ? (width - 8) / LETTER : 0);
    if (letters >= 3) {
        mlo_buf_printf(out, "<text x=\"%.2f\" y=\"%.0f\">", x + 4, y + ROW - 9);
        put_text(out, b->label, letters);
        mlo_buf_printf(out, "</text>");
    }
    mlo_buf_printf(out, "</g>\n");
    for (int i = b->first; i >= 0; i = f->blocks[i].next) {
        put_block(f, i, x, scale, out);
        x += f->blocks[i].us * scale;
    }
}

static void put_legend(double y, struct mlo_buf *out)
{
    double x = MARGIN;
    for (int c = 0; c < COLOURS; c++) {
        mlo_buf_printf(
            out,
            "<rect x=\"%.0f\" y=\"%.0f\" width=\"14\" height=\"14\" class=\"c%d\"/><text x=\"%.0f\" "
            "y=\"%.0f\">%s</text>\n",
            x, y, c, x + 20, y + 12, colours[c].label);
        x += 44 + LETTER * (double)strlen(colours[c].label);
    }
}

static void put_all(const struct flame *f, const char *title, const json_t *profile, struct mlo_buf *out)
{
    const struct block *root = &f->blocks[0];
    double legend = TOP + (f->deepest + 1) * ROW + 14;
    int height = (int)legend + 30;
    char took[32];
    mlo_buf_printf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
        "font-family=\"system-ui, sans-serif\" font-size=\"12\">\n<title>",
        WIDTH, height, WIDTH, height);
    put_text(out, title, 200);
    mlo_buf_puts(out, "</title>\n<style>text{fill:#111827}.h{font-size:17px;font-weight:600}.s{fill:#4b5563}"
                      "g:hover rect{stroke:#111827;stroke-width:1.2}");
    for (int c = 0; c < COLOURS; c++)
        mlo_buf_printf(out, ".c%d{fill:%s}", c, colours[c].fill);
    mlo_buf_puts(out, "</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
    mlo_buf_printf(out, "<text class=\"h\" x=\"%d\" y=\"26\">", MARGIN);
    put_text(out, title, 110);
    mlo_buf_printf(out, "</text>\n<text class=\"s\" x=\"%d\" y=\"46\">%s a call, %zu nodes; ", MARGIN,
                   mlo_cli_duration(root->us, took), json_array_size(json_object_get(profile, "nodes")));
    put_text(out, mlo_json_str(profile, "version", ""), 80);
    mlo_buf_printf(out, ", batch %lld, %lld thread%s. Width is time; %s.</text>\n",
                   (long long)mlo_json_i64(profile, "batch", 1),
                   (long long)mlo_json_i64(profile, "threads", 1),
                   mlo_json_i64(profile, "threads", 1) == 1 ? "" : "s",
                   f->by_op ? "grouped by op, since the nodes' names have no scopes"
                            : "left to right is the order of execution");
    put_block(f, 0, MARGIN, root->us > 0 ? (WIDTH - 2 * MARGIN) / root->us : 0, out);
    put_legend(legend, out);
    mlo_buf_puts(out, "</svg>\n");
}

enum mlo_status mlo_local_flame(const char *title, const json_t *profile, struct mlo_buf *out,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct flame f = {0};
    const json_t *nodes = json_object_get(profile, "nodes");
    const char *slash = strrchr(title, '/');
    title = slash && slash[1] ? slash + 1 : title;
    bool ok = add_block(&f, -1, title, strlen(title), NULL) == 0;
    f.by_op = true;
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        const char *name = mlo_json_str(json_array_get(nodes, i), "node", "");
        f.by_op = f.by_op && !strchr(name + (*name == '/'), '/');
    }
    json_t **order = calloc(json_array_size(nodes) + 1, sizeof *order);
    ok = ok && order;
    for (size_t i = 0; ok && i < json_array_size(nodes); i++)
        order[i] = json_array_get(nodes, i);
    if (ok && f.by_op)
        qsort(order, json_array_size(nodes), sizeof *order, mlo_local_by_time);
    for (size_t i = 0; ok && i < json_array_size(nodes); i++)
        ok = add_node(&f, order[i]);
    free(order);
    if (ok)
        put_all(&f, title, profile, out);
    if (!ok || !mlo_buf_ok(out))
        status = mlo_error_nomem(err);
    free(f.blocks);
    return status;
}
