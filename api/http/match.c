/* From method and path to the row of a table. */
#include <ctype.h>
#include <string.h>

#include "api/http/http_impl.h"

/* One segment: from text to the next slash or the end. */
static size_t segment_length(const char *text)
{
    return strcspn(text, "/");
}

/* Whether `path` has the shape of `pattern`; *literals counts equal literal segments (the more, the better).
 * One walk over both without calls: each request asks this of each route. */
static bool path_fits(const char *pattern, const char *path, int *literals)
{
    *literals = 0;
    for (;;) {
        if (*pattern == '{') {
            if (!*path || *path == '/')
                return false;
            while (*pattern && *pattern != '/')
                pattern++;
            while (*path && *path != '/')
                path++;
        } else {
            for (; *pattern && *pattern != '/'; pattern++, path++)
                if (*path != *pattern)
                    return false;
            if (*path && *path != '/')
                return false;
            ++*literals;
        }
        if (!*pattern || !*path)
            return *pattern == *path;
        pattern++;
        path++;
    }
}

static bool take_params(struct mlo_request *req)
{
    const char *pattern = req->route->path, *path = req->path;
    size_t found = 0;
    for (;;) {
        size_t m = segment_length(pattern), n = segment_length(path);
        if (m && pattern[0] == '{') {
            req->param[found] = mlo_arena_strndup(req->arena, path, n);
            if (!req->param[found++])
                return false;
        }
        pattern += m;
        path += n;
        if (!*pattern)
            return true;
        pattern++;
        path++;
    }
}

static bool method_serves(const struct mlo_route *route, const char *method)
{
    return strcmp(route->method, method) == 0 ||
           (strcmp(method, "HEAD") == 0 && strcmp(route->method, "GET") == 0);
}

const struct mlo_route *mlo_route_match(const struct mlo_http *http, struct mlo_request *req,
                                        const char **allow)
{
    int closest = -1;
    bool served = false;
    char methods[128] = "";
    for (size_t m = 0; m < http->module_count; m++) {
        const struct mlo_http_module *module = &http->modules[m];
        for (size_t i = 0; i < module->count; i++) {
            const struct mlo_route *route = &module->routes[i];
            int literals;
            if (!path_fits(route->path, req->path, &literals) || literals < closest)
                continue;
            if (literals >
                closest) { /* what fits less is another address (OpenAPI, "Path Templating Matching") */
                closest = literals;
                served = false;
                methods[0] = '\0';
            }
            if (!method_serves(route, req->method)) {
                size_t used = strlen(methods);
                if (!strstr(methods, route->method))
                    snprintf(methods + used, sizeof methods - used, "%s%s", used ? ", " : "", route->method);
                continue;
            }
            /* an exact method is better than GET serving HEAD */
            if (!served || strcmp(route->method, req->method) == 0) {
                served = true;
                req->route = route;
                req->module = module;
            }
        }
    }
    if (!served) {
        *allow = mlo_arena_strdup(req->arena, methods);
        return NULL;
    }
    return take_params(req) ? req->route : NULL;
}

const char *mlo_request_param(const struct mlo_request *req, const char *name)
{
    size_t index = 0, length = strlen(name);
    for (const char *at = strchr(req->route->path, '{'); at; at = strchr(at + 1, '{'), index++)
        if (strncmp(at + 1, name, length) == 0 && at[1 + length] == '}')
            return req->param[index];
    return NULL;
}

static enum mlo_status check_row(const struct mlo_route *route, struct mlo_error *err)
{
    size_t params = 0;
    if (!route->method || !route->path || !route->handler || !route->docs || !route->docs[0])
        return mlo_error_set(err, MLO_EINTERNAL, "route %s is incomplete", route->path ? route->path : "?");
    for (const char *at = strchr(route->path, '{'); at; at = strchr(at + 1, '{'), params++)
        if (at[-1] != '/' || !strchr(at, '}'))
            return mlo_error_set(err, MLO_EINTERNAL, "route %s: a parameter must be a whole segment",
                                 route->path);
    if (route->path[0] != '/' || params > MLO_ROUTE_PARAMS)
        return mlo_error_set(err, MLO_EINTERNAL, "route %s: bad path", route->path);
    if (route->upload && (!route->upload->begin || !route->upload->data || !route->upload->end))
        return mlo_error_set(err, MLO_EINTERNAL, "route %s: incomplete upload", route->path);
    return MLO_OK;
}

/* The same requests: equal but for the names of parameters. */
static bool same_shape(const char *a, const char *b)
{
    while (*a && *b) {
        if (*a == '{' && *b == '{') {
            a += segment_length(a);
            b += segment_length(b);
        } else if (*a++ != *b++) {
            return false;
        }
    }
    return *a == *b;
}

enum mlo_status mlo_route_table_check(const struct mlo_http_module *modules, size_t count,
                                      struct mlo_error *err)
{
    for (size_t m = 0; m < count; m++)
        for (size_t i = 0; i < modules[m].count; i++) {
            const struct mlo_route *route = &modules[m].routes[i];
            enum mlo_status status = check_row(route, err);
            if (status != MLO_OK)
                return status;
            for (size_t n = 0; n <= m; n++)
                for (size_t j = 0; j < (n == m ? i : modules[n].count); j++) {
                    const struct mlo_route *other = &modules[n].routes[j];
                    if (strcmp(route->method, other->method) == 0 && same_shape(route->path, other->path))
                        return mlo_error_set(err, MLO_EINTERNAL, "two routes for %s %s", route->method,
                                             route->path);
                }
        }
    return MLO_OK;
}
