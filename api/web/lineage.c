/* Lineage as an SVG: what an artifact came from on its left, what came from it on its right. */
#include <stdlib.h>
#include <string.h>

#include "api/web/web_impl.h"

/* A page stays under 100 KB whatever was derived from a model. */
enum { NODES_MAX = 60, EDGES_MAX = 120, TITLE_NAMES = 4, SAID_NAMES = 5 };
#define BOX_W 190
#define BOX_H 48
#define GAP_X 120
#define GAP_Y 22
#define PAD 12

struct node {
    const json_t *json;
    const char *digest;
    bool dataset, judges; /* judges: a dataset that was only evaluated on */
    int column, row;
};

struct graph {
    struct node nodes[NODES_MAX];
    size_t count;
    int columns, rows;
};

static struct node *find(struct graph *graph, const char *digest)
{
    for (size_t i = 0; i < graph->count; i++)
        if (strcmp(graph->nodes[i].digest, digest) == 0)
            return &graph->nodes[i];
    return NULL;
}

static void add_node(struct graph *graph, const json_t *index, const char *digest, size_t most)
{
    const json_t *json = json_object_get(index, digest);
    if (!json || graph->count >= most || find(graph, digest))
        return;
    graph->nodes[graph->count++] = (struct node){.json = json,
                                                 .digest = mlo_text(json, "digest"),
                                                 .dataset = strcmp(mlo_text(json, "type"), "dataset") == 0};
}

/* What the nodes that are there came from, or that and what came from them, the nearest first. */
static void add_nearest(struct graph *graph, const json_t *index, const json_t *edges, bool down, size_t most)
{
    const json_t *edge;
    size_t i;
    for (size_t n = 0; n < graph->count && graph->count < most; n++) {
        json_array_foreach((json_t *)edges, i, edge)
        {
            if (strcmp(mlo_text(edge, "child"), graph->nodes[n].digest) == 0)
                add_node(graph, index, mlo_text(edge, "parent"), most);
            else if (down && strcmp(mlo_text(edge, "parent"), graph->nodes[n].digest) == 0)
                add_node(graph, index, mlo_text(edge, "child"), most);
        }
    }
}

/* The root, what it came from, and what else is near to it, as far as there is room; and the edges between
 * these, yours. */
static json_t *choose(struct graph *graph, const json_t *lineage)
{
    const json_t *edges = json_object_get(lineage, "edges"), *item;
    json_t *index = json_object(), *near = json_array();
    size_t i;
    json_array_foreach(json_object_get(lineage, "nodes"), i, item)
        json_object_set(index, mlo_text(item, "digest"), (json_t *)item);
    add_node(graph, index, mlo_text(lineage, "root"), 1);
    add_nearest(graph, index, edges, false, NODES_MAX / 2);
    add_nearest(graph, index, edges, true, NODES_MAX);
    json_array_foreach((json_t *)edges, i, item) if (find(graph, mlo_text(item, "child")) &&
                                                     find(graph, mlo_text(item, "parent")))
        json_array_append(near, (json_t *)item);
    json_decref(index);
    return near;
}

/* What is calibrated or selected with stands left of the first that used it; what is evaluated on, below all,
 * in the middle of those that it judged. */
static void place_dataset(struct graph *graph, const json_t *edges, struct node *set)
{
    int nearest = (int)graph->count, sum = 0, children = 0;
    const json_t *edge;
    size_t i;
    set->judges = true;
    json_array_foreach((json_t *)edges, i, edge)
    {
        const struct node *child = find(graph, mlo_text(edge, "child"));
        if (!child || strcmp(mlo_text(edge, "parent"), set->digest) != 0)
            continue;
        set->judges = set->judges && strcmp(mlo_text(edge, "kind"), "evaluated-on") == 0;
        nearest = MLO_MIN(nearest, child->column);
        sum += child->column;
        children++;
    }
    if (!children || nearest < 1)
        nearest = 1;
    set->column = set->judges && children ? sum / children : nearest - 1;
}

/* Rows: artifacts, below them what they were made with, below all what judged them. */
static void place_rows(struct graph *graph)
{
    int used[NODES_MAX] = {0}, base = 0;
    for (int pass = 0; pass < 3; pass++) {
        if (pass == 2) {
            base = graph->rows;
            memset(used, 0, sizeof used);
        }
        for (size_t n = 0; n < graph->count; n++) {
            struct node *node = &graph->nodes[n];
            if (pass != (node->judges ? 2 : node->dataset ? 1 : 0))
                continue;
            node->row = base + used[node->column]++;
            graph->columns = MLO_MAX(graph->columns, node->column + 1);
            graph->rows = MLO_MAX(graph->rows, node->row + 1);
        }
    }
}

/* Columns: an artifact stands right of what it was derived from. */
static void place(struct graph *graph, const json_t *edges)
{
    const json_t *edge;
    size_t i;
    for (size_t round = 0; round < graph->count; round++) /* bounded: also for a graph that has a cycle */
        json_array_foreach((json_t *)edges, i, edge)
        {
            struct node *child = find(graph, mlo_text(edge, "child")),
                        *parent = find(graph, mlo_text(edge, "parent"));
            if (child && parent && !parent->dataset && child->column <= parent->column &&
                parent->column + 1 < (int)graph->count)
                child->column = parent->column + 1;
        }
    for (size_t n = 0; n < graph->count; n++)
        if (graph->nodes[n].dataset)
            place_dataset(graph, edges, &graph->nodes[n]);
    place_rows(graph);
}

static int left_of(const struct node *node)
{
    return PAD + node->column * (BOX_W + GAP_X);
}

static int top_of(const struct node *node)
{
    return PAD + node->row * (BOX_H + GAP_Y);
}

/* What the parent did for the child. */
static const char *const LABELS[][2] = {
    {"calibrated-with", "calibrates"}, {"selected-with", "selects"},  {"evaluated-on", "evaluates"},
    {"trained-on", "trains"},          {"distilled-from", "teaches"}, {"fine-tuned-from", "fine-tuned"},
};

static void draw_edge(struct mlo_buf *out, const struct node *from, const struct node *to, const json_t *edge)
{
    const char *kind = mlo_text(edge, "kind"), *step = mlo_text(edge, "step");
    bool derived = strcmp(kind, "derived-from") == 0;
    int x1 = left_of(from) + BOX_W, y1 = top_of(from) + BOX_H / 2, x2 = left_of(to),
        y2 = top_of(to) + BOX_H / 2;
    int label_x = (x1 + x2) / 2, label_y = (y1 + y2) / 2 - 6;
    if (from->judges) { /* sideways out of the dataset, then up to the artifact */
        x1 = left_of(from) + (to->column > from->column ? BOX_W : to->column < from->column ? 0 : BOX_W / 2);
        x2 += BOX_W / 2;
        y2 = top_of(to) + BOX_H;
        HTML(out, "<path class=\"edge used\" d=\"M%d %dQ%d %d %d %d\" marker-end=\"url(#tip)\"/>", x1, y1, x2,
             y1, x2, y2 + 2);
        label_x = (x1 + 3 * x2) / 4;
        label_y = (3 * y1 + y2) / 4 + 4;
    } else {
        int bend = (x2 - x1) / 2;
        HTML(out, "<path class=\"edge%s\" d=\"M%d %dC%d %d %d %d %d %d\" marker-end=\"url(#tip)\"/>",
             derived ? "" : " used", x1, y1, x1 + bend, y1, x2 - bend, y2, x2 - 2, y2);
    }
    const char *label = derived ? (step[0] ? step : "derived") : "";
    for (size_t i = 0; i < MLO_COUNT(LABELS); i++)
        if (strcmp(kind, LABELS[i][0]) == 0)
            label = LABELS[i][1];
    HTML(out, "<text class=\"label\" x=\"%d\" y=\"%d\">%s</text>", label_x, label_y, label);
}

/* "cnn@1/int8-cpu" of the name "fashion/cnn@1/int8-cpu"; a digest where it is NULL. Cut to what fits in a
 * box. */
static void node_title(const struct node *node, const char *name, char out[32])
{
    const char *slash = name ? strchr(name, '/') : NULL;
    const char *text = slash ? slash + 1 : name;
    char hex[13];
    if (!text) {
        snprintf(hex, sizeof hex, "%s", node->digest + (mlo_str_starts(node->digest, "sha256:") ? 7 : 0));
        text = hex;
    }
    if (strlen(text) > 24)
        snprintf(out, 32, "%.23s…", text);
    else
        snprintf(out, 32, "%s", text);
}

/* The root has the name under which it was asked for, whatever else it is called. */
static void draw_node(struct mlo_buf *out, const struct node *node, const char *root, const char *root_name)
{
    char title[32], size[32] = "";
    const json_t *names = json_object_get(node->json, "names"), *bytes = json_object_get(node->json, "size");
    const char *type = mlo_text(node->json, "type"), *name = json_string_value(json_array_get(names, 0));
    bool is_root = strcmp(root, node->digest) == 0;
    size_t count = (size_t)mlo_json_i64(node->json, "names_count", 0),
           told = MLO_MIN(json_array_size(names), (size_t)TITLE_NAMES);
    int x = left_of(node), y = top_of(node);
    node_title(node, is_root ? root_name : name, title);
    if (json_is_integer(bytes))
        mlo_str_size((uint64_t)json_integer_value(bytes), size);
    HTML(out, "<g class=\"node %s%s\"><title>%s", type, is_root ? " root" : "", node->digest);
    for (size_t i = 0; i < told; i++)
        HTML(out, "\n%s", json_string_value(json_array_get(names, i)));
    if (count > told)
        HTML(out, "\n… (%zu names%s)", count, count == MLO_LINEAGE_COUNTED ? " or more" : "");
    HTML(out, "</title><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"%d\"/>", x, y, BOX_W, BOX_H,
         node->dataset ? BOX_H / 2 : 6);
    HTML(out, "<text class=\"name\" x=\"%d\" y=\"%d\">%s</text>", x + BOX_W / 2, y + 21, title);
    HTML(out, "<text class=\"kind\" x=\"%d\" y=\"%d\">%s%s%s</text></g>", x + BOX_W / 2, y + 37, type,
         size[0] ? " · " : "", size);
}

/* What else the root's bytes are called. */
static void other_names(struct mlo_buf *out, const char *project, const json_t *root, const char *root_name)
{
    const json_t *names = json_object_get(root, "names"), *item;
    long long count = (long long)mlo_json_i64(root, "names_count", 0);
    size_t i, said = 0;
    if (count < 2)
        return;
    HTML(out, "<p class=\"muted\" id=\"also\">The same bytes are also ");
    json_array_foreach((json_t *)names, i, item)
    {
        if (said == SAID_NAMES || strcmp(json_string_value(item), root_name) == 0)
            continue;
        HTML(out, "%s%s", said ? ", " : "", json_string_value(item));
        said++;
    }
    HTML(out, "%s: <a href=\"/names/%s/%s\">all %lld%s names</a></p>",
         (long long)said + 1 < count ? " …" : "", project, mlo_text(root, "digest"), count,
         count == MLO_LINEAGE_COUNTED ? " or more" : "");
}

void mlo_piece_lineage(struct mlo_buf *out, const char *project, const char *name, const json_t *lineage)
{
    const json_t *nodes = json_object_get(lineage, "nodes"), *item;
    const char *root = mlo_text(lineage, "root");
    struct graph *graph = calloc(1, sizeof *graph);
    size_t i;
    if (!graph)
        return;
    json_t *edges = choose(graph, lineage);
    size_t drawn = MLO_MIN(json_array_size(edges), (size_t)EDGES_MAX);
    place(graph, edges);
    int width = 2 * PAD + graph->columns * (BOX_W + GAP_X) - GAP_X,
        height = 2 * PAD + graph->rows * (BOX_H + GAP_Y) - GAP_Y;
    if (graph->count)
        HTML(out,
             "<div class=\"scroll\" tabindex=\"0\"><svg class=\"lineage\" role=\"img\" "
             "aria-label=\"Lineage\" width=\"%d\" "
             "height=\"%d\" "
             "viewBox=\"0 0 %d %d\"><defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" "
             "markerWidth=\"7\" "
             "markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\"/></marker></defs>",
             width, height, width, height);
    for (i = 0; i < drawn; i++) {
        item = json_array_get(edges, i);
        draw_edge(out, find(graph, mlo_text(item, "parent")), find(graph, mlo_text(item, "child")), item);
    }
    for (size_t n = 0; n < graph->count; n++)
        draw_node(out, &graph->nodes[n], root, name);
    if (graph->count) {
        HTML(out, "</svg></div>");
        other_names(out, project, graph->nodes[0].json, name);
    }
    if (json_array_size(nodes) > graph->count || json_array_size(edges) > drawn)
        HTML(out, "<p class=\"muted\">%zu more and %zu arrows are not drawn; the API lists all.</p>",
             json_array_size(nodes) - graph->count, json_array_size(edges) - drawn);
    json_decref(edges);
    free(graph);
}

enum mlo_status page_names(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_buf *out = &req->out;
    const char *p = mlo_request_param(req, "p"), *digest = mlo_request_param(req, "digest");
    struct mlo_digest artifact;
    struct mlo_page page;
    json_t *names = NULL, *item;
    int64_t project;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(mlo_request_digest(req, &artifact, err));
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_lineage_names(req->conn, project, &artifact, &page, &names, err));
    mlo_page_begin(req, "Names of an artifact", "models");
    HTML(out,
         "<p class=\"eyebrow\"><a href=\"/\">Models</a> / %s</p><h1>Variants of the same bytes</h1>"
         "<p class=\"lead\"><code class=\"whole\">%s</code></p><section class=\"panel\">",
         p, digest);
    if (json_array_size(json_object_get(names, "items"))) {
        HTML(out,
             "<div class=\"scroll\" tabindex=\"0\"><table id=\"names\"><thead><tr><th>Variant</th><th>By</th>"
             "<th class=\"n\">Since</th></tr></thead><tbody>");
        json_array_foreach(json_object_get(names, "items"), i, item)
        {
            const char *model = mlo_text(item, "model"), *variant = mlo_text(item, "variant");
            long long version = (long long)mlo_json_i64(item, "version", 0);
            if (mlo_json_bool(item, "deleted", false))
                HTML(out, "<tr><td>%s@%lld/%s <span class=\"badge off\">deleted</span>", model, version,
                     variant);
            else
                HTML(out, "<tr><td><a href=\"/variant/%s/%s/%lld/%s\">%s@%lld/<b>%s</b></a>", p, model,
                     version, variant, model, version, variant);
            HTML(out, "</td><td>%s</td><td class=\"n\">", mlo_text(item, "named_by"));
            mlo_piece_time(out, mlo_json_str(item, "named_at", NULL));
            HTML(out, "</td></tr>");
        }
        HTML(out, "</tbody></table></div>");
    } else {
        HTML(out, "<p class=\"empty\">No variant of this project is these bytes now.</p>");
    }
    mlo_piece_next(req, names);
    HTML(out, "</section>");
    MLO_TRY(mlo_page_end(req, 200, err));
out:
    json_decref(names);
    return status;
}
