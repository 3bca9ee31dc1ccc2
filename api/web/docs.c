/* The contract of the API to be read: an index, a page a topic, and the schemas. No sign-in: it says nothing
 * of this installation. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "api/web/web_impl.h"

#define SCHEMAS "schemas"

static enum mlo_status load_contract(json_t **out, struct mlo_error *err)
{
    size_t size;
    const char *text = mlo_http_contract(&size);
    return mlo_json_parse(text, size, "api/openapi.yaml", out, err);
}

static const json_t *component(const json_t *contract, const char *kind, const char *name)
{
    return json_object_get(json_object_get(json_object_get(contract, "components"), kind), name);
}

/* The last part of what a "$ref" names; NULL: none. */
static const char *ref_name(const json_t *at)
{
    const char *ref = json_string_value(json_object_get(at, "$ref"));
    return ref && strrchr(ref, '/') ? strrchr(ref, '/') + 1 : NULL;
}

static void upper(struct mlo_buf *out, const char *text)
{
    for (; *text; text++)
        HTML(out, "%c", toupper((unsigned char)*text));
}

static void compact(struct mlo_buf *out, const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    HTML(out, "<code>%s</code>", text ? text : "");
    free(text);
}

/* A schema in a few words, references as links. */
static void schema_words(struct mlo_buf *out, const json_t *schema, int depth)
{
    static const char *const compounds[] = {"allOf", "anyOf"}, *const between[] = {" and ", " or "};
    static const char *const limits[] = {"pattern",   "minimum",  "maximum",  "minLength",
                                         "maxLength", "minItems", "maxItems", "default"};
    const char *name = ref_name(schema), *key;
    json_t *item;
    size_t i;
    if (name) {
        HTML(out, "<a href=\"/docs/api/" SCHEMAS "#%s\">%s</a>", name, name);
        return;
    }
    for (size_t c = 0; c < MLO_COUNT(compounds); c++)
        json_array_foreach(json_object_get(schema, compounds[c]), i, item)
        {
            HTML(out, "%s", i ? between[c] : "");
            schema_words(out, item, depth + 1);
        }
    const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum");
    if (values) {
        json_array_foreach((json_t *)values, i, item)
        {
            HTML(out, "%s", i ? " | " : "");
            compact(out, item);
        }
    } else if (json_is_string(type)) {
        HTML(out, "%s", json_string_value(type));
    } else {
        json_array_foreach((json_t *)type, i, item)
            HTML(out, "%s%s", i ? " or " : "", json_string_value(item));
    }
    for (i = 0; i < MLO_COUNT(limits); i++)
        if ((item = json_object_get(schema, limits[i]))) {
            HTML(out, ", %s ", limits[i]);
            compact(out, item);
        }
    if ((item = json_object_get(schema, "items")) && json_object_size(item)) {
        HTML(out, " of ");
        schema_words(out, item, depth + 1);
    }
    const json_t *properties = json_object_get(schema, "properties");
    if (!properties || depth > 6)
        return;
    HTML(out, "<ul>");
    json_object_foreach((json_t *)properties, key, item)
    {
        bool required = false;
        json_t *must;
        json_array_foreach(json_object_get(schema, "required"), i, must) required =
            required || strcmp(json_string_value(must), key) == 0;
        HTML(out, "<li><code>%s</code>%s: ", key, required ? "" : " (optional)");
        schema_words(out, item, depth + 1);
        if (*mlo_text(item, "description"))
            HTML(out, " – %s", mlo_text(item, "description"));
        HTML(out, "</li>");
    }
    HTML(out, "</ul>");
}

static void parameters(struct mlo_buf *out, const json_t *contract, const json_t *list)
{
    json_t *item;
    size_t i;
    if (!json_array_size(list))
        return;
    HTML(out, "<div class=\"scroll\" "
              "tabindex=\"0\"><table><thead><tr><th>Parameter</th><th>In</th><th>Value</th><th>Example</th>"
              "</tr></thead><tbody>");
    json_array_foreach((json_t *)list, i, item)
    {
        const char *shared = ref_name(item);
        const json_t *parameter = shared ? component(contract, "parameters", shared) : item, *example;
        HTML(out, "<tr><td><code>%s</code></td><td>%s%s</td><td>%s ", mlo_text(parameter, "name"),
             mlo_text(parameter, "in"), mlo_json_bool(parameter, "required", false) ? "" : ", optional",
             mlo_text(parameter, "description"));
        schema_words(out, json_object_get(parameter, "schema"), 0);
        HTML(out, "</td><td>");
        if ((example = json_object_get(parameter, "example")))
            compact(out, example);
        HTML(out, "</td></tr>");
    }
    HTML(out, "</tbody></table></div>");
}

/* What a body or an answer holds, by content type. */
static void content(struct mlo_buf *out, const json_t *media)
{
    const char *type;
    json_t *item;
    json_object_foreach((json_t *)media, type, item)
    {
        HTML(out, "<div><code>%s</code> ", type);
        schema_words(out, json_object_get(item, "schema"), 0);
        HTML(out, "</div>");
        if (json_is_object(json_object_get(item, "example"))) {
            char *text = json_dumps(json_object_get(item, "example"), JSON_INDENT(1));
            HTML(out, "<pre>%s</pre>", text ? text : "");
            free(text);
        }
    }
}

static void responses(struct mlo_buf *out, const json_t *contract, const json_t *list)
{
    const char *status;
    json_t *item;
    HTML(out, "<div class=\"scroll\" "
              "tabindex=\"0\"><table><thead><tr><th>Status</th><th>Answer</th></tr></thead><tbody>");
    json_object_foreach((json_t *)list, status, item)
    {
        const char *shared = ref_name(item);
        const json_t *response = shared ? component(contract, "responses", shared) : item;
        HTML(out, "<tr><td class=\"n\">%s</td><td>%s", status, mlo_text(response, "description"));
        if (!shared)
            content(out, json_object_get(response, "content"));
        HTML(out, "</td></tr>");
    }
    HTML(out, "</tbody></table></div>");
}

static void operation_section(struct mlo_buf *out, const json_t *contract, const char *method,
                              const char *path, const json_t *operation)
{
    HTML(out, "<section class=\"panel\" id=\"%s\"><h2><code>", mlo_text(operation, "operationId"));
    upper(out, method);
    HTML(out, " %s</code></h2><p>%s</p>", path, mlo_text(operation, "summary"));
    if (*mlo_text(operation, "description"))
        HTML(out, "<p>%s</p>", mlo_text(operation, "description"));
    HTML(out, "<p class=\"muted\">Role: %s</p>", mlo_text(operation, "x-role"));
    parameters(out, contract, json_object_get(operation, "parameters"));
    const json_t *body = json_object_get(operation, "requestBody");
    if (body) {
        HTML(out, "<h3>Body%s</h3>", mlo_json_bool(body, "required", false) ? "" : " (optional)");
        content(out, json_object_get(body, "content"));
    }
    HTML(out, "<h3>Answers</h3>");
    responses(out, contract, json_object_get(operation, "responses"));
    HTML(out, "</section>");
}

/* The operations of a topic: rows of the index, or whole. */
static void operations(struct mlo_buf *out, const json_t *contract, const char *tag, bool whole)
{
    const char *path, *method;
    json_t *item, *operation;
    json_object_foreach(json_object_get(contract, "paths"), path, item)
        json_object_foreach(item, method, operation)
    {
        if (strcmp(json_string_value(json_array_get(json_object_get(operation, "tags"), 0)), tag) != 0)
            continue;
        if (whole) {
            operation_section(out, contract, method, path, operation);
            continue;
        }
        HTML(out, "<tr><td>");
        upper(out, method);
        HTML(out, "</td><td><a href=\"/docs/api/%s#%s\"><code>%s</code></a></td><td>%s</td><td>%s</td></tr>",
             tag, mlo_text(operation, "operationId"), path, mlo_text(operation, "summary"),
             mlo_text(operation, "x-role"));
    }
}

enum mlo_status page_docs(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_buf *out = &req->out;
    json_t *contract = NULL, *tag;
    size_t i;
    enum mlo_status status;
    MLO_TRY(load_contract(&contract, err));
    mlo_page_begin(req, "REST API", "");
    HTML(out,
         "<h1>REST API</h1><p>%s</p><p>For programs: <a href=\"/v1/openapi.json\">/v1/openapi.json</a> "
         "(OpenAPI %s). <a href=\"/docs/api/" SCHEMAS "\">All schemas</a>.</p>",
         mlo_text(json_object_get(contract, "info"), "description"), mlo_text(contract, "openapi"));
    json_array_foreach(json_object_get(contract, "tags"), i, tag)
    {
        HTML(out,
             "<section class=\"panel\"><h2><a href=\"/docs/api/%s\">%s</a></h2><div class=\"scroll\" "
             "tabindex=\"0\"><table>"
             "<thead><tr><th>Method</th><th>Address</th><th>What</th><th>Role</th></tr></thead><tbody>",
             mlo_text(tag, "name"), mlo_text(tag, "description"));
        operations(out, contract, mlo_text(tag, "name"), false);
        HTML(out, "</tbody></table></div></section>");
    }
    MLO_TRY(mlo_page_end_tagged(req, err));
out:
    json_decref(contract);
    return status;
}

static void all_schemas(struct mlo_buf *out, const json_t *contract)
{
    const char *name;
    json_t *schema;
    json_object_foreach(json_object_get(json_object_get(contract, "components"), "schemas"), name, schema)
    {
        HTML(out, "<section class=\"panel\" id=\"%s\"><h2>%s</h2><p>%s</p>", name, name,
             mlo_text(schema, "description"));
        schema_words(out, schema, 0);
        HTML(out, "</section>");
    }
}

enum mlo_status page_docs_topic(struct mlo_request *req, struct mlo_error *err)
{
    const char *topic = mlo_request_param(req, "topic"), *title = NULL;
    json_t *contract = NULL, *tag;
    size_t i;
    enum mlo_status status;
    MLO_TRY(load_contract(&contract, err));
    if (strcmp(topic, SCHEMAS) == 0)
        title = "Schemas";
    json_array_foreach(json_object_get(contract, "tags"), i, tag) if (strcmp(mlo_text(tag, "name"), topic) ==
                                                                      0) title = mlo_text(tag, "description");
    if (!title) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "the API has no topic '%.60s'", topic);
        mlo_error_hint(err, "all are listed at /docs/api");
        goto out;
    }
    mlo_page_begin(req, title, "");
    HTML(&req->out, "<p><a href=\"/docs/api\">REST API</a></p><h1>%s</h1>", title);
    if (strcmp(topic, SCHEMAS) == 0)
        all_schemas(&req->out, contract);
    else
        operations(&req->out, contract, topic, true);
    MLO_TRY(mlo_page_end_tagged(req, err));
out:
    json_decref(contract);
    return status;
}
