#include "pipeline/steps/decision.h"

#include <string.h>

/* Options of the quantize pass that name nodes, by the precision that a node is given back to. */
static const struct {
    const char *precision, *option;
} GIVEN[] = {{"float", "exclude"}, {"float16", "float16"}};

static enum mlo_status check(const json_t *decision, const char *path, const char *step,
                             const struct mlo_digest *model, struct mlo_error *err)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    const char *format = mlo_json_str(decision, "format", NULL);
    enum mlo_status status = MLO_OK;
    if (!format || strcmp(format, MLO_DECISION_FORMAT) != 0 ||
        (!json_is_array(json_object_get(decision, "given_back")) &&
         !json_is_object(json_object_get(decision, "choices")))) {
        status = mlo_error_set(err, MLO_EFORMAT, "%s is no decision of the form " MLO_DECISION_FORMAT, path);
        mlo_error_hint(err, "give what --decision wrote, or the blob that the variant's derivation names");
    } else if (strcmp(mlo_json_str(decision, "step", ""), step) != 0) {
        status = mlo_error_set(err, MLO_EINVAL, "the decision is of a step '%.60s', not of '%s'",
                               mlo_json_str(decision, "step", ""), step);
    } else if (strcmp(mlo_json_str(decision, "model", ""), mlo_digest_text(model, text)) != 0) {
        status = mlo_error_set(err, MLO_EINVAL, "the decision was made for another model: %.80s, not %s",
                               mlo_json_str(decision, "model", "?"), text);
        mlo_error_hint(err,
                       "the steps before must be those of the search, on the same upload and with the same "
                       "options");
    }
    if (status != MLO_OK)
        mlo_error_where(err, "%s", path);
    return status;
}

enum mlo_status mlo_decision_load(const struct mlo_step_context *ctx, const char *path, const char *step,
                                  json_t **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_digest model;
    json_t *decision = NULL;
    *out = NULL;
    MLO_TRY(mlo_digest_of_file(ctx->model_path, &model, NULL, err));
    MLO_TRY(mlo_json_load_file(path, &decision, err));
    MLO_TRY(check(decision, path, step, &model, err));
    *out = json_incref(decision);
out:
    json_decref(decision);
    return status;
}

enum mlo_status mlo_decision_save(const json_t *decision, const char *path, struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT;
    mlo_json_canonical(decision, &text);
    enum mlo_status status = mlo_buf_ok(&text) ? mlo_fs_write_atomic(path, mlo_buf_str(&text), text.len, err)
                                               : mlo_error_nomem(err);
    mlo_buf_clear(&text);
    return status;
}

/* Appends a node to the list that is the value of an option. */
static enum mlo_status add_node(json_t *options, const char *option, const char *node, struct mlo_error *err)
{
    json_t *list = json_copy(json_object_get(options, option));
    if (!list)
        list = json_array();
    if (!list || json_array_append_new(list, json_string(node)) != 0) {
        json_decref(list);
        return mlo_error_nomem(err);
    }
    return json_object_set_new(options, option, list) == 0 ? MLO_OK : mlo_error_nomem(err);
}

enum mlo_status mlo_decision_options(const json_t *decision, const json_t *options, json_t **out,
                                     struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t i;
    json_t *row;
    *out = json_copy((json_t *)options);
    if (!*out)
        return mlo_error_nomem(err);
    json_array_foreach(json_object_get(decision, "given_back"), i, row)
    {
        const char *to = mlo_json_str(row, "to", ""), *node = mlo_json_str(row, "node", NULL);
        size_t k = 0;
        while (k < MLO_COUNT(GIVEN) && strcmp(GIVEN[k].precision, to) != 0)
            k++;
        if (!node || k == MLO_COUNT(GIVEN)) {
            status = mlo_error_set(err, MLO_EFORMAT, "the decision gives '%.80s' back to '%.40s'",
                                   node ? node : "?", to);
            mlo_error_hint(err, "it may come from a newer version of this program");
            goto out;
        }
        MLO_TRY(add_node(*out, GIVEN[k].option, node, err));
    }
out:
    if (status != MLO_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return status;
}
