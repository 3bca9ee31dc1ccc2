/* `mlopt doctor`: what of this machine matters to a service that runs other people's models, what is here for
 * GPUs, and whether the server answers that it is configured for. */
#include <string.h>

#include "api/cli/client/client.h"
#include "api/cli/local/local_impl.h"
#include "api/cli/serve/serve.h"
#include "api/http/tls.h"
#include "engines/cuda/found.h"
#include "pipeline/service/service.h"

/* What the server says of itself, {"url","from","status":"ready"|"not ready"|"unreachable","checks","error"};
 * NULL: none is configured. A configuration that cannot be read is such an error too (url and from are null
 * then): what is on this machine is told all the same. */
static enum mlo_status ask_server(struct mlo_cli *cli, json_t **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_config config = {0};
    struct mlo_client *client = NULL;
    struct mlo_response answer = {0};
    struct mlo_error why = {0};
    *out = NULL;
    enum mlo_status asked = mlo_config_load(mlo_cli_opt(cli, "url"), &config, &why);
    if (asked == MLO_OK && strcmp(config.url_from, "default") == 0)
        goto out;
    if (asked == MLO_OK)
        asked = mlo_client_open(cli, &client, &why);
    if (asked == MLO_OK)
        asked = mlo_client_call(client, "GET", "/readyz", NULL, NULL, &answer, &why);
    if (asked == MLO_ENOMEM) {
        *err = why;
        status = asked;
        goto out;
    }
    cli->request_id[0] = '\0'; /* what it answers is no failure of ours */
    const char *state = asked == MLO_OK    ? mlo_json_str(answer.json, "status", "not ready")
                        : answer.http != 0 ? "not ready"
                                           : "unreachable";
    json_t *checks = json_object_get(answer.json, "checks");
    *out = json_pack("{s:s?, s:s?, s:s, s:O?, s:s?}", "url", config.url, "from", config.url_from, "status",
                     state, "checks", checks, "error", asked == MLO_OK ? NULL : why.message);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    mlo_response_clear(&answer);
    mlo_client_close(client);
    mlo_config_clear(&config);
    return status;
}

/* What a server that is started with these files would say, {"cert","key","subject","names","from","until",
 * "days_left","ok","error"}; NULL: there are none. *why: what is wrong with them. */
static enum mlo_status look_at_tls(const struct mlo_cli *cli, json_t **out, struct mlo_error *why,
                                   struct mlo_error *err)
{
    const char *cert, *key;
    struct mlo_tls_facts facts = {.subject = ""};
    char from[32] = "", until[32] = "";
    *out = NULL;
    enum mlo_status status = mlo_serve_tls(cli, &cert, &key, err);
    if (status != MLO_OK || !cert)
        return status;
    status = mlo_tls_check(cert, key, &facts, why);
    if (status == MLO_ENOMEM) {
        *err = *why;
        return status;
    }
    if (facts.not_after_us) {
        mlo_clock_format(facts.not_before_us, from);
        mlo_clock_format(facts.not_after_us, until);
    }
    int64_t left_us = facts.not_after_us - mlo_clock_utc_us();
    *out =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:b, s:b, s:s?}", "cert", cert, "key", key, "subject",
                  facts.subject, "names", facts.names, "from", from, "until", until, "days_left",
                  (json_int_t)(facts.not_after_us ? left_us / 86400000000 : 0), "key_is_open",
                  facts.key_is_open, "ok", status == MLO_OK, "error", status == MLO_OK ? NULL : why->message);
    return *out ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status print_tls(const json_t *tls, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    if (!tls)
        return MLO_OK;
    MLO_TRY(mlo_cli_print(err, "\nTLS %s: %s\n", mlo_json_str(tls, "cert", ""),
                          mlo_json_bool(tls, "ok", false) ? "good" : mlo_json_str(tls, "error", "")));
    if (mlo_json_str(tls, "until", "")[0])
        MLO_TRY(mlo_cli_print(err, "for %s; until %s (%lld days)\n",
                              mlo_json_str(tls, "names", "")[0] ? mlo_json_str(tls, "names", "")
                                                                : "no name, so no client takes it",
                              mlo_json_str(tls, "until", ""), (long long)mlo_json_i64(tls, "days_left", 0)));
    if (mlo_json_bool(tls, "key_is_open", false))
        MLO_TRY(mlo_cli_print(err, "everybody on this machine can read the key: chmod 600 %s\n",
                              mlo_json_str(tls, "key", "")));
out:
    return status;
}

static enum mlo_status print_layers(const json_t *layers, bool whole, struct mlo_error *err)
{
    struct mlo_table table;
    const json_t *layer;
    size_t i;
    mlo_table_init(&table, "layer|here|what it does, or what it needs");
    json_array_foreach((json_t *)layers, i, layer)
        mlo_table_row(&table, mlo_json_str(layer, "layer", ""),
                      mlo_json_bool(layer, "on", false) ? "yes" : "no", mlo_json_str(layer, "note", ""));
    enum mlo_status status = mlo_table_print_take(&table, err);
    if (status == MLO_OK)
        status = mlo_cli_print(err, "%s\n",
                               whole ? "jobs are confined by every layer"
                                     : "jobs run with the layers that there are; a worker with "
                                       "--require-isolation would not start here");
    return status;
}

static enum mlo_status print_server(const json_t *server, struct mlo_error *err)
{
    struct mlo_table table;
    const json_t *check, *checks = json_object_get(server, "checks");
    size_t i;
    enum mlo_status status;
    if (!server)
        return mlo_cli_print(err, "\nno server is configured (MLOPT_URL, --url, or the config file)\n");
    if (!mlo_json_str(server, "url", NULL))
        MLO_TRY(mlo_cli_print(err, "\nserver: %s\n", mlo_json_str(server, "status", "")));
    else
        MLO_TRY(mlo_cli_print(err, "\nserver %s (%s): %s\n", mlo_json_str(server, "url", ""),
                              mlo_json_str(server, "from", ""), mlo_json_str(server, "status", "")));
    if (mlo_json_str(server, "error", NULL))
        MLO_TRY(mlo_cli_print(err, "%s\n", mlo_json_str(server, "error", "")));
    if (json_array_size(checks) == 0)
        return MLO_OK;
    mlo_table_init(&table, "check|holds|ms>|code");
    json_array_foreach((json_t *)checks, i, check)
    {
        char ms[32];
        snprintf(ms, sizeof ms, "%.2f", mlo_json_f64(check, "ms", 0));
        mlo_table_row(&table, mlo_json_str(check, "name", ""),
                      mlo_json_bool(check, "ok", false) ? "yes" : "no", ms,
                      mlo_json_str(check, "code", NULL));
    }
    status = mlo_table_print_take(&table, err);
out:
    return status;
}

static enum mlo_status doctor_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *layers = NULL, *server = NULL, *all = NULL, *gpu = NULL, *tls = NULL;
    struct mlo_error bad_tls = {0};
    bool whole = false;
    MLO_TRY(mlo_isolation(&layers, &whole, err));
    MLO_TRY(mlo_cuda_found(&gpu, err));
    MLO_TRY(look_at_tls(cli, &tls, &bad_tls, err));
    MLO_TRY(ask_server(cli, &server, err));
    if (cli->json) {
        all = json_pack("{s:O,s:b,s:O,s:O*,s:O*}", "isolation", layers, "whole", whole, "gpu", gpu, "server",
                        server, "tls", tls);
        MLO_TRY(all ? mlo_cli_print_json(all, err) : mlo_error_nomem(err));
    } else {
        MLO_TRY(print_layers(layers, whole, err));
        MLO_TRY(mlo_cli_print(err, "\n"));
        MLO_TRY(mlo_local_gpu_print(gpu, err));
        MLO_TRY(print_tls(tls, err));
        MLO_TRY(print_server(server, err));
    }
    if (bad_tls.status != MLO_OK) {
        *err = bad_tls;
        status = bad_tls.status;
    } else if (mlo_cli_has(cli, "gpu"))
        status = mlo_local_gpu_needed(gpu, err);
out:
    json_decref(layers);
    json_decref(server);
    json_decref(all);
    json_decref(gpu);
    json_decref(tls);
    return status;
}

static const struct mlo_cli_option doctor_options[] = {
    MLO_OPTION_URL,
    {"tls-cert", 0, "FILE", "a certificate to look at, as mlopt server takes it (MLOPT_TLS_CERT)"},
    {"tls-key", 0, "FILE", "its key (MLOPT_TLS_KEY)"},
    {"gpu", 0, NULL, "exit code 9 where no GPU can be used"},
    {NULL},
};
const struct mlo_cli_verb mlo_verb_doctor = {
    .name = "doctor",
    .group = "Service",
    .run = doctor_run,
    .options = doctor_options,
    .positional = "",
    .help = "what this machine's kernel has to keep jobs from harm, what is here for GPUs, and whether the "
            "server is ready",
};
