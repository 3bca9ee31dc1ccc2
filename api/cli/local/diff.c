/* mlopt diff: what changed between two models. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/local/local_impl.h"

static char *type_text(const struct mlo_value *v, char out[256])
{
    return mlo_type_describe(&v->type, out, 256);
}

/* {"name","change","a","b"} where one side may be missing. */
static void add_row(json_t *list, const char *name, const char *a, const char *b)
{
    const char *change = !a ? "added" : !b ? "removed" : "changed";
    json_array_append_new(list,
                          json_pack("{s:s,s:s,s:s?,s:s?}", "name", name, "change", change, "a", a, "b", b));
}

static const struct mlo_value *port(struct mlo_value *const *list, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(list[i]->name, name) == 0)
            return list[i];
    return NULL;
}

static json_t *diff_ports(struct mlo_value *const *a, int na, struct mlo_value *const *b, int nb)
{
    json_t *list = json_array();
    char x[256], y[256];
    for (int i = 0; i < na; i++) {
        const struct mlo_value *other = port(b, nb, a[i]->name);
        if (a[i]->constant)
            continue;
        type_text(a[i], x);
        if (!other || other->constant)
            add_row(list, a[i]->name, x, NULL);
        else if (strcmp(x, type_text(other, y)) != 0)
            add_row(list, a[i]->name, x, y);
    }
    for (int i = 0; i < nb; i++) {
        const struct mlo_value *other = port(a, na, b[i]->name);
        if (!b[i]->constant && (!other || other->constant))
            add_row(list, b[i]->name, NULL, type_text(b[i], y));
    }
    return list;
}

static json_t *diff_opsets(const struct mlo_model *a, const struct mlo_model *b)
{
    json_t *list = json_array();
    const struct mlo_model *sides[2] = {a, b};
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < sides[s]->opset_count; i++) {
            const char *domain = sides[s]->opsets[i].domain;
            int64_t x = mlo_model_opset(a, domain), y = mlo_model_opset(b, domain);
            char from[24], to[24];
            if (x == y || (s == 1 && x)) /* the second time round: what only b has */
                continue;
            snprintf(from, sizeof from, "%lld", (long long)x);
            snprintf(to, sizeof to, "%lld", (long long)y);
            add_row(list, *domain ? domain : "ai.onnx", x ? from : NULL, y ? to : NULL);
        }
    return list;
}

static json_t *op_counts(const struct mlo_graph *g)
{
    json_t *counts = json_object();
    for (int i = 0; i < g->node_count; i++) {
        char name[160];
        snprintf(name, sizeof name, "%s%s%s", g->nodes[i]->domain, *g->nodes[i]->domain ? "." : "",
                 g->nodes[i]->op_type);
        json_object_set_new(counts, name, json_integer(mlo_json_i64(counts, name, 0) + 1));
    }
    return counts;
}

static json_t *diff_ops(const struct mlo_graph *a, const struct mlo_graph *b)
{
    json_t *x = op_counts(a), *y = op_counts(b), *out = json_object(), *value;
    const char *key;
    json_object_foreach(y, key, value) if (!json_object_get(x, key))
        json_object_set_new(x, key, json_integer(0));
    json_object_foreach(x, key, value)
    {
        int64_t n = mlo_json_i64(y, key, 0);
        if (n != json_integer_value(value))
            json_object_set_new(out, key, json_pack("{s:O,s:I}", "a", value, "b", (json_int_t)n));
    }
    json_decref(x);
    json_decref(y);
    return out;
}

/* --- attributes and inputs of nodes that both have --------------------------------------------------------
 */

static void attr_text(const struct mlo_attr *a, struct mlo_buf *out)
{
    char type[128];
    mlo_buf_reset(out);
    switch (a->type) {
    case MLO_ATTR_FLOAT:
        mlo_buf_printf(out, "%.9g", (double)a->f);
        break;
    case MLO_ATTR_INT:
        mlo_buf_printf(out, "%lld", (long long)a->i);
        break;
    case MLO_ATTR_STRING:
        mlo_buf_printf(out, "\"%.*s\"", (int)MLO_MIN(a->s.size, 200), a->s.bytes);
        break;
    case MLO_ATTR_INTS:
        for (size_t i = 0; i < a->ints.count; i++)
            mlo_buf_printf(out, "%s%lld", i ? "," : "", (long long)a->ints.i[i]);
        break;
    case MLO_ATTR_FLOATS:
        for (size_t i = 0; i < a->floats.count; i++)
            mlo_buf_printf(out, "%s%.9g", i ? "," : "", (double)a->floats.f[i]);
        break;
    case MLO_ATTR_STRINGS:
        for (size_t i = 0; i < a->strings.count; i++)
            mlo_buf_printf(out, "%s\"%.100s\"", i ? "," : "", a->strings.s[i]);
        break;
    case MLO_ATTR_TENSOR: {
        struct mlo_digest digest;
        char text[MLO_DIGEST_TEXT_SIZE];
        mlo_digest_of(a->tensor->data, a->tensor->size_bytes, &digest);
        mlo_buf_printf(out, "%s %.20s", mlo_tensor_describe(a->tensor, type, sizeof type),
                       mlo_digest_text(&digest, text));
        break;
    }
    case MLO_ATTR_GRAPH:
        mlo_graph_dump(a->graph, out);
        break;
    default:
        mlo_buf_printf(out, "of type %d", (int)a->type);
    }
}

static void diff_attrs(const struct mlo_node *a, const struct mlo_node *b, json_t *list)
{
    struct mlo_buf x = MLO_BUF_INIT, y = MLO_BUF_INIT;
    for (int i = 0; i < a->attr_count; i++) {
        const struct mlo_attr *other = mlo_node_attr(b, a->attrs[i].name);
        attr_text(&a->attrs[i], &x);
        if (other)
            attr_text(other, &y);
        if (!other)
            add_row(list, a->attrs[i].name, mlo_buf_str(&x), NULL);
        else if (strcmp(mlo_buf_str(&x), mlo_buf_str(&y)) != 0)
            add_row(list, a->attrs[i].name, mlo_buf_str(&x), mlo_buf_str(&y));
    }
    for (int i = 0; i < b->attr_count; i++)
        if (!mlo_node_attr(a, b->attrs[i].name)) {
            attr_text(&b->attrs[i], &y);
            add_row(list, b->attrs[i].name, NULL, mlo_buf_str(&y));
        }
    mlo_buf_clear(&x);
    mlo_buf_clear(&y);
}

static json_t *names_json(struct mlo_value *const *values, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list, values[i] ? json_string(values[i]->name) : json_null());
    return list;
}

/* Nodes are the same when they have the same name; a map from names makes that quick. */
static json_t *nodes_by_name(const struct mlo_graph *g)
{
    json_t *map = json_object();
    for (int i = 0; i < g->node_count; i++)
        json_object_set_new(map, g->nodes[i]->name, json_integer(i));
    return map;
}

static json_t *diff_nodes(const struct mlo_graph *a, const struct mlo_graph *b)
{
    json_t *in_a = nodes_by_name(a), *in_b = nodes_by_name(b), *list = json_array();
    for (int i = 0; i < a->node_count; i++) {
        const struct mlo_node *x = a->nodes[i];
        int64_t at = mlo_json_i64(in_b, x->name, -1);
        if (at < 0) {
            add_row(list, x->name, x->op_type, NULL);
            continue;
        }
        const struct mlo_node *y = b->nodes[at];
        json_t *attrs = json_array(), *ins_x = names_json(x->inputs, x->input_count),
               *ins_y = names_json(y->inputs, y->input_count);
        diff_attrs(x, y, attrs);
        bool op = strcmp(x->op_type, y->op_type) != 0 || strcmp(x->domain, y->domain) != 0;
        bool inputs = !json_equal(ins_x, ins_y);
        if (op || inputs || json_array_size(attrs)) {
            add_row(list, x->name, x->op_type, y->op_type);
            json_t *row = json_array_get(list, json_array_size(list) - 1);
            json_object_set(row, "attributes", attrs);
            if (inputs)
                json_object_update_new(row, json_pack("{s:O,s:O}", "inputs_a", ins_x, "inputs_b", ins_y));
        }
        json_decref(attrs);
        json_decref(ins_x);
        json_decref(ins_y);
    }
    for (int i = 0; i < b->node_count; i++)
        if (!json_object_get(in_a, b->nodes[i]->name))
            add_row(list, b->nodes[i]->name, NULL, b->nodes[i]->op_type);
    json_decref(in_a);
    json_decref(in_b);
    return list;
}

/* --- initializers -----------------------------------------------------------------------------------------
 */

static void compare_data(const struct mlo_tensor *x, const struct mlo_tensor *y, json_t *row)
{
    size_t count = mlo_tensor_count(x), changed = 0;
    double largest = 0;
    bool nan = false;
    for (size_t i = 0; i < count; i++) {
        double p = mlo_tensor_get_f64(x, i), q = mlo_tensor_get_f64(y, i);
        changed += p != q && !(isnan(p) && isnan(q));
        nan = nan || isnan(p) != isnan(q);
        if (fabs(p - q) > largest)
            largest = fabs(p - q);
    }
    json_object_set_new(row, "elements", json_integer((json_int_t)count));
    json_object_set_new(row, "elements_changed", json_integer((json_int_t)changed));
    json_object_set_new(row, "max_difference", nan || isinf(largest) ? json_null() : json_real(largest));
}

static json_t *diff_initializers(const struct mlo_graph *a, const struct mlo_graph *b)
{
    json_t *list = json_array();
    char x[256], y[256];
    for (int i = 0; i < a->value_count; i++) {
        const struct mlo_value *v = a->values[i], *other = mlo_graph_value(b, v->name);
        const struct mlo_tensor *p = v->constant, *q = other ? other->constant : NULL;
        if (!p)
            continue;
        if (!q) {
            add_row(list, v->name, type_text(v, x), NULL);
            continue;
        }
        bool alike = p->dtype == q->dtype && mlo_tensor_same_shape(p, q);
        if (alike && p->size_bytes == q->size_bytes &&
            (!p->size_bytes || memcmp(p->data, q->data, p->size_bytes) == 0))
            continue;
        add_row(list, v->name, type_text(v, x), type_text(other, y));
        if (mlo_tensor_same_shape(p, q) && mlo_dtype_info(p->dtype)->bits && mlo_dtype_info(q->dtype)->bits)
            compare_data(p, q, json_array_get(list, json_array_size(list) - 1));
    }
    for (int i = 0; i < b->value_count; i++) {
        const struct mlo_value *v = b->values[i], *other = mlo_graph_value(a, v->name);
        if (v->constant && (!other || !other->constant))
            add_row(list, v->name, NULL, type_text(v, y));
    }
    return list;
}

/* --- the verb ---------------------------------------------------------------------------------------------
 */

static json_t *totals(const struct mlo_model *m)
{
    uint64_t parameters = 0, bytes = 0;
    for (int i = 0; i < m->graph->value_count; i++)
        if (m->graph->values[i]->constant) {
            parameters += mlo_tensor_count(m->graph->values[i]->constant);
            bytes += m->graph->values[i]->constant->size_bytes;
        }
    return json_pack("{s:i,s:I,s:I}", "nodes", m->graph->node_count, "parameters", (json_int_t)parameters,
                     "weight_bytes", (json_int_t)bytes);
}

static const char *const parts[] = {"opsets", "inputs", "outputs", "nodes", "initializers"};

static json_t *diff_models(const struct mlo_model *a, const struct mlo_model *b)
{
    const struct mlo_graph *x = a->graph, *y = b->graph;
    json_t *d = json_pack("{s:o,s:o,s:o,s:o,s:o,s:o}", "opsets", diff_opsets(a, b), "inputs",
                          diff_ports(x->inputs, x->input_count, y->inputs, y->input_count), "outputs",
                          diff_ports(x->outputs, x->output_count, y->outputs, y->output_count), "ops",
                          diff_ops(x, y), "nodes", diff_nodes(x, y), "initializers", diff_initializers(x, y));
    bool same = d != NULL;
    for (size_t i = 0; same && i < MLO_COUNT(parts); i++)
        same = json_array_size(json_object_get(d, parts[i])) == 0;
    if (d)
        json_object_set_new(d, "identical", json_boolean(same));
    return d;
}

static void detail_text(const json_t *row, struct mlo_buf *out)
{
    const json_t *attrs = json_object_get(row, "attributes");
    size_t i;
    json_t *attr;
    mlo_buf_reset(out);
    json_array_foreach(attrs, i, attr)
        mlo_buf_printf(out, "%s%s: %.40s -> %.40s", i ? "; " : "", mlo_json_str(attr, "name", ""),
                       mlo_json_str(attr, "a", "-"), mlo_json_str(attr, "b", "-"));
    if (json_object_get(row, "inputs_a"))
        mlo_buf_printf(out, "%sreads other inputs", out->len ? "; " : "");
    if (json_object_get(row, "elements_changed"))
        mlo_buf_printf(out, "%lld of %lld elements, by at most %.3g",
                       (long long)mlo_json_i64(row, "elements_changed", 0),
                       (long long)mlo_json_i64(row, "elements", 0),
                       json_number_value(json_object_get(row, "max_difference")));
}

static enum mlo_status print_diff(const json_t *d, struct mlo_error *err)
{
    struct mlo_table table;
    struct mlo_buf detail = MLO_BUF_INIT;
    const json_t *a = json_object_get(d, "a"), *b = json_object_get(d, "b");
    const char *key;
    json_t *row;
    size_t i;
    if (json_is_true(json_object_get(d, "identical")))
        return mlo_cli_print(err, "the models are the same\n");
    mlo_table_init(&table, "what|name|change|a|b|detail");
    for (size_t p = 0; p < MLO_COUNT(parts); p++)
        json_array_foreach(json_object_get(d, parts[p]), i, row)
        {
            detail_text(row, &detail);
            mlo_table_row(&table, parts[p], mlo_json_str(row, "name", ""), mlo_json_str(row, "change", ""),
                          mlo_json_str(row, "a", NULL), mlo_json_str(row, "b", NULL), mlo_buf_str(&detail));
        }
    json_object_foreach(json_object_get(d, "ops"), key, row)
    {
        char from[24], to[24];
        snprintf(from, sizeof from, "%lld", (long long)mlo_json_i64(row, "a", 0));
        snprintf(to, sizeof to, "%lld", (long long)mlo_json_i64(row, "b", 0));
        mlo_table_row(&table, "ops", key, "count", from, to, "");
    }
    mlo_buf_clear(&detail);
    enum mlo_status status = mlo_table_print_take(&table, err);
    if (status == MLO_OK)
        status = mlo_cli_print(
            err, "nodes %lld -> %lld, parameters %lld -> %lld, weight bytes %lld -> %lld\n",
            (long long)mlo_json_i64(a, "nodes", 0), (long long)mlo_json_i64(b, "nodes", 0),
            (long long)mlo_json_i64(a, "parameters", 0), (long long)mlo_json_i64(b, "parameters", 0),
            (long long)mlo_json_i64(a, "weight_bytes", 0), (long long)mlo_json_i64(b, "weight_bytes", 0));
    return status;
}

static enum mlo_status diff_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_model *models[2] = {NULL, NULL};
    json_t *d = NULL;
    for (int i = 0; i < 2; i++) {
        status = mlo_onnx_load(cli->args[i], &models[i], err);
        if (status != MLO_OK) {
            mlo_cli_name_file(err, cli->args[i]);
            goto out;
        }
    }
    d = diff_models(models[0], models[1]);
    if (!d) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (int i = 0; i < 2; i++) {
        json_t *file = NULL, *total = totals(models[i]);
        status = mlo_local_file_json(cli->args[i], &file, err);
        json_object_update(total, file);
        json_decref(file);
        json_object_set_new(d, i ? "b" : "a", total);
        if (status != MLO_OK)
            goto out;
    }
    status = cli->json ? mlo_cli_print_json(d, err) : print_diff(d, err);
out:
    json_decref(d);
    mlo_model_free(models[0]);
    mlo_model_free(models[1]);
    return status;
}

static const struct mlo_cli_option options[] = {{NULL}};
const struct mlo_cli_verb mlo_verb_diff = {
    .name = "diff",
    .group = "Local (no server needed)",
    .run = diff_run,
    .options = options,
    .positional = "A.onnx B.onnx",
    .min_args = 2,
    .max_args = 2,
    .help = "what changed between two models: inputs, opsets, nodes, attributes, weights",
};
