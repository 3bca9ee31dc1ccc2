/* The text form of a graph. */
#include <string.h>

#include "graph/model_impl.h"

enum { SPELLED_OUT = 8 }; /* elements of a constant that are written in full */

static void put_name(struct mlo_buf *out, const char *name)
{
    bool plain = *name != '\0';
    for (const char *c = name; *c; c++)
        plain = plain && (unsigned char)*c > ' ' && !strchr("\"\\(),{}=", *c) && *c != 127;
    if (plain) {
        mlo_buf_puts(out, name);
        return;
    }
    mlo_buf_putc(out, '"');
    for (const char *c = name; *c; c++) {
        if ((unsigned char)*c < ' ' || *c == 127)
            mlo_buf_printf(out, "\\x%02x", (unsigned char)*c);
        else if (*c == '"' || *c == '\\')
            mlo_buf_printf(out, "\\%c", *c);
        else
            mlo_buf_putc(out, *c);
    }
    mlo_buf_putc(out, '"');
}

static void put_type(struct mlo_buf *out, const struct mlo_type *type)
{
    char text[512];
    mlo_buf_puts(out, mlo_type_describe(type, text, sizeof text));
}

static void put_tensor(struct mlo_buf *out, const struct mlo_tensor *t)
{
    char text[256];
    size_t count = mlo_tensor_count(t);
    mlo_buf_puts(out, mlo_tensor_describe(t, text, sizeof text));
    if (count > SPELLED_OUT) {
        struct mlo_digest digest;
        mlo_digest_of(t->data, t->size_bytes, &digest);
        mlo_digest_text(&digest, text);
        mlo_buf_printf(out, " %.23s", text); /* "sha256:" and 16 digits */
        return;
    }
    const struct mlo_dtype_info *info = mlo_dtype_info(t->dtype);
    mlo_buf_puts(out, " {");
    for (size_t i = 0; i < count; i++) {
        mlo_buf_puts(out, i ? ", " : "");
        if (info && info->is_float)
            mlo_buf_printf(out, "%.9g", mlo_tensor_get_f64(t, i));
        else
            mlo_buf_printf(out, "%lld", (long long)mlo_tensor_get_i64(t, i));
    }
    mlo_buf_putc(out, '}');
}

static void put_graph(struct mlo_buf *out, const struct mlo_graph *graph, int indent);

static void put_attr(struct mlo_buf *out, const struct mlo_attr *attr)
{
    put_name(out, attr->name);
    mlo_buf_putc(out, '=');
    switch (attr->type) {
    case MLO_ATTR_FLOAT:
        mlo_buf_printf(out, "%.9g", (double)attr->f);
        break;
    case MLO_ATTR_INT:
        mlo_buf_printf(out, "%lld", (long long)attr->i);
        break;
    case MLO_ATTR_STRING:
        put_name(out, attr->s.bytes);
        break;
    case MLO_ATTR_TENSOR:
        put_tensor(out, attr->tensor);
        break;
    case MLO_ATTR_TYPE:
        put_type(out, attr->value_type);
        break;
    case MLO_ATTR_FLOATS:
        for (size_t i = 0; i < attr->floats.count; i++)
            mlo_buf_printf(out, "%s%.9g", i ? "," : "[", (double)attr->floats.f[i]);
        mlo_buf_puts(out, attr->floats.count ? "]" : "[]");
        break;
    case MLO_ATTR_INTS:
        for (size_t i = 0; i < attr->ints.count; i++)
            mlo_buf_printf(out, "%s%lld", i ? "," : "[", (long long)attr->ints.i[i]);
        mlo_buf_puts(out, attr->ints.count ? "]" : "[]");
        break;
    case MLO_ATTR_STRINGS:
        for (size_t i = 0; i < attr->strings.count; i++) {
            mlo_buf_puts(out, i ? "," : "[");
            put_name(out, attr->strings.s[i]);
        }
        mlo_buf_puts(out, attr->strings.count ? "]" : "[]");
        break;
    case MLO_ATTR_GRAPH:
    case MLO_ATTR_GRAPHS:
    case MLO_ATTR_TENSORS:
        mlo_buf_puts(out, "…"); /* graphs follow on their own lines */
        break;
    }
}

struct nested {
    struct mlo_buf *out;
    int indent;
};

static bool put_nested(struct mlo_graph *graph, void *arg)
{
    const struct nested *n = arg;
    put_graph(n->out, graph, n->indent);
    return true;
}

static void put_node(struct mlo_buf *out, const struct mlo_node *node, int indent)
{
    mlo_buf_printf(out, "%*snode ", indent, "");
    put_name(out, node->name);
    mlo_buf_printf(out, ": %s%s%s(", node->domain, *node->domain ? "." : "", node->op_type);
    for (int i = 0; i < node->input_count; i++) {
        mlo_buf_puts(out, i ? ", " : "");
        if (node->inputs[i])
            put_name(out, node->inputs[i]->name);
        else
            mlo_buf_putc(out, '_');
    }
    mlo_buf_putc(out, ')');
    for (int i = 0; i < node->attr_count; i++) {
        mlo_buf_puts(out, i ? ", " : " {");
        put_attr(out, &node->attrs[i]);
    }
    mlo_buf_puts(out, node->attr_count ? "} -> " : " -> ");
    for (int i = 0; i < node->output_count; i++) {
        mlo_buf_puts(out, i ? ", " : "");
        if (!node->outputs[i]) {
            mlo_buf_putc(out, '_');
            continue;
        }
        put_name(out, node->outputs[i]->name);
        mlo_buf_putc(out, ' ');
        put_type(out, &node->outputs[i]->type);
    }
    mlo_buf_putc(out, '\n');
    struct nested nested = {out, indent + 2};
    mlo_node_each_subgraph(node, put_nested, &nested);
}

static void put_graph(struct mlo_buf *out, const struct mlo_graph *graph, int indent)
{
    mlo_buf_printf(out, "%*sgraph ", indent, "");
    put_name(out, graph->name);
    mlo_buf_putc(out, '\n');
    indent += 2;
    for (int i = 0; !graph->parent && i < graph->model->opset_count; i++) {
        const struct mlo_opset *o = &graph->model->opsets[i];
        mlo_buf_printf(out, "%*sopset %s %lld\n", indent, "", *o->domain ? o->domain : "ai.onnx",
                       (long long)o->version);
    }
    for (int i = 0; i < graph->input_count; i++) {
        mlo_buf_printf(out, "%*sinput ", indent, "");
        put_name(out, graph->inputs[i]->name);
        mlo_buf_putc(out, ' ');
        put_type(out, &graph->inputs[i]->type);
        mlo_buf_putc(out, '\n');
    }
    for (int i = 0; i < graph->value_count; i++) {
        const struct mlo_value *value = graph->values[i];
        if (!value->constant)
            continue;
        mlo_buf_printf(out, "%*sconst ", indent, "");
        put_name(out, value->name);
        mlo_buf_putc(out, ' ');
        put_tensor(out, value->constant);
        mlo_buf_putc(out, '\n');
    }
    for (int i = 0; i < graph->node_count; i++)
        put_node(out, graph->nodes[i], indent);
    for (int i = 0; i < graph->output_count; i++) {
        mlo_buf_printf(out, "%*soutput ", indent, "");
        put_name(out, graph->outputs[i]->name);
        mlo_buf_putc(out, ' ');
        put_type(out, &graph->outputs[i]->type);
        mlo_buf_putc(out, '\n');
    }
}

void mlo_graph_dump(const struct mlo_graph *graph, struct mlo_buf *out)
{
    put_graph(out, graph, 0);
}
