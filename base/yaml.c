#include <string.h>

#include <yaml.h>

#include "base/yaml.h"

enum { MAX_DEPTH = 32, MAX_NODES = 40000 };

struct builder {
    struct mlo_arena *arena;
    const char *name;
    struct mlo_error *err;
    yaml_parser_t parser;
    struct mlo_yaml *stack[MAX_DEPTH], *last[MAX_DEPTH]; /* open collections and their last members */
    const char *pending_key[MAX_DEPTH];
    int pending_line[MAX_DEPTH];
    int depth, nodes;
    struct mlo_yaml *root;
};

static enum mlo_status refuse(struct builder *b, int line, const char *what)
{
    enum mlo_status status = mlo_error_set(b->err, MLO_EFORMAT, "%s:%d: %s", b->name, line, what);
    mlo_error_where(b->err, "%s:%d", b->name, line);
    return status;
}

static enum mlo_status attach(struct builder *b, struct mlo_yaml *node)
{
    if (b->depth == 0) {
        if (b->root)
            return refuse(b, node->line, "a second document; one file holds one");
        b->root = node;
        return MLO_OK;
    }
    int top = b->depth - 1;
    struct mlo_yaml *parent = b->stack[top];
    if (parent->kind == MLO_YAML_MAP) {
        node->key = b->pending_key[top];
        node->key_line = b->pending_line[top];
        b->pending_key[top] = NULL;
    }
    if (b->last[top])
        b->last[top]->next = node;
    else
        parent->first = node;
    b->last[top] = node;
    parent->count++;
    return MLO_OK;
}

static struct mlo_yaml *new_node(struct builder *b, enum mlo_yaml_kind kind, int line)
{
    struct mlo_yaml *node = mlo_arena_alloc(b->arena, sizeof *node);
    if (node) {
        node->kind = kind;
        node->line = line;
    }
    return node;
}

static enum mlo_status open_collection(struct builder *b, enum mlo_yaml_kind kind, int line)
{
    if (b->depth > 0 && b->stack[b->depth - 1]->kind == MLO_YAML_MAP && !b->pending_key[b->depth - 1])
        return refuse(b, line, "a key must be plain text");
    if (b->depth == MAX_DEPTH)
        return refuse(b, line, "nested too deep");
    struct mlo_yaml *node = new_node(b, kind, line);
    if (!node)
        return mlo_error_nomem(b->err);
    enum mlo_status status = attach(b, node);
    if (status != MLO_OK)
        return status;
    b->stack[b->depth] = node;
    b->last[b->depth] = NULL;
    b->pending_key[b->depth] = NULL;
    b->depth++;
    return MLO_OK;
}

static enum mlo_status add_scalar(struct builder *b, const yaml_event_t *event, int line)
{
    const char *text = (const char *)event->data.scalar.value;
    if (strlen(text) != event->data.scalar.length)
        return refuse(b, line, "a NUL byte inside a text");
    char *copy = mlo_arena_strdup(b->arena, text);
    if (!copy)
        return mlo_error_nomem(b->err);
    int top = b->depth - 1;
    if (b->depth > 0 && b->stack[top]->kind == MLO_YAML_MAP && !b->pending_key[top]) {
        if (mlo_yaml_get(b->stack[top], copy)) {
            struct mlo_buf what = MLO_BUF_INIT;
            mlo_buf_printf(&what, "the key '%.100s' stands twice", copy);
            enum mlo_status status = refuse(b, line, mlo_buf_str(&what));
            mlo_buf_clear(&what);
            return status;
        }
        b->pending_key[top] = copy;
        b->pending_line[top] = line;
        return MLO_OK;
    }
    struct mlo_yaml *node = new_node(b, MLO_YAML_SCALAR, line);
    if (!node)
        return mlo_error_nomem(b->err);
    node->text = copy;
    node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    return attach(b, node);
}

static enum mlo_status handle(struct builder *b, const yaml_event_t *event)
{
    int line = (int)event->start_mark.line + 1;
    if (++b->nodes > MAX_NODES)
        return refuse(b, line, "too many entries");
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        if (event->data.scalar.anchor || event->data.scalar.tag)
            return refuse(b, line, "anchors and tags are not allowed here");
        return add_scalar(b, event, line);
    case YAML_SEQUENCE_START_EVENT:
        if (event->data.sequence_start.anchor || event->data.sequence_start.tag)
            return refuse(b, line, "anchors and tags are not allowed here");
        return open_collection(b, MLO_YAML_LIST, line);
    case YAML_MAPPING_START_EVENT:
        if (event->data.mapping_start.anchor || event->data.mapping_start.tag)
            return refuse(b, line, "anchors and tags are not allowed here");
        return open_collection(b, MLO_YAML_MAP, line);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        b->depth--;
        return MLO_OK;
    case YAML_ALIAS_EVENT:
        return refuse(b, line, "aliases (*name) are not allowed here; write the value out");
    default:
        return MLO_OK;
    }
}

enum mlo_status mlo_yaml_parse(struct mlo_arena *arena, const char *text, size_t size, const char *name,
                               struct mlo_yaml **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct builder b = {.arena = arena, .name = name, .err = err};
    *out = NULL;
    if (!yaml_parser_initialize(&b.parser))
        return mlo_error_nomem(err);
    yaml_parser_set_input_string(&b.parser, (const unsigned char *)text, size);
    yaml_parser_set_encoding(&b.parser, YAML_UTF8_ENCODING);
    bool done = false;
    while (status == MLO_OK && !done) {
        yaml_event_t event;
        if (!yaml_parser_parse(&b.parser, &event)) {
            status = refuse(&b, (int)b.parser.problem_mark.line + 1,
                            b.parser.problem ? b.parser.problem : "not YAML");
            break;
        }
        done = event.type == YAML_STREAM_END_EVENT;
        status = handle(&b, &event);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&b.parser);
    if (status == MLO_OK && !b.root)
        status = refuse(&b, 1, "the file is empty");
    if (status == MLO_OK)
        *out = b.root;
    return status;
}

const struct mlo_yaml *mlo_yaml_get(const struct mlo_yaml *map, const char *key)
{
    if (!map || map->kind != MLO_YAML_MAP)
        return NULL;
    for (const struct mlo_yaml *m = map->first; m; m = m->next)
        if (strcmp(m->key, key) == 0)
            return m;
    return NULL;
}

static json_t *scalar_to_json(const struct mlo_yaml *node)
{
    static const char *const NULLS[] = {"", "~", "null", "Null", "NULL"};
    static const char *const TRUES[] = {"true", "True", "TRUE"};
    static const char *const FALSES[] = {"false", "False", "FALSE"};
    int64_t i;
    double d;
    if (node->quoted)
        return json_string(node->text);
    for (size_t k = 0; k < MLO_COUNT(NULLS); k++)
        if (strcmp(node->text, NULLS[k]) == 0)
            return json_null();
    for (size_t k = 0; k < MLO_COUNT(TRUES); k++) {
        if (strcmp(node->text, TRUES[k]) == 0)
            return json_true();
        if (strcmp(node->text, FALSES[k]) == 0)
            return json_false();
    }
    if (mlo_str_to_i64(node->text, &i))
        return json_integer(i);
    if (strspn(node->text, "0123456789+-.eE") == strlen(node->text) && mlo_str_to_f64(node->text, &d))
        return json_real(d);
    return json_string(node->text);
}

json_t *mlo_yaml_to_json(const struct mlo_yaml *node)
{
    if (node->kind == MLO_YAML_SCALAR)
        return scalar_to_json(node);
    json_t *out = node->kind == MLO_YAML_MAP ? json_object() : json_array();
    for (const struct mlo_yaml *m = node->first; m && out; m = m->next) {
        json_t *member = mlo_yaml_to_json(m);
        int failed = node->kind == MLO_YAML_MAP ? json_object_set_new(out, m->key, member)
                                                : json_array_append_new(out, member);
        if (failed) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}
