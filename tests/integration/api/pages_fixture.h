/* Sessions of the pages, with the server of api_fixture.h. */
#ifndef MLO_TESTS_PAGES_FIXTURE_H
#define MLO_TESTS_PAGES_FIXTURE_H

#include "tests/integration/api/api_fixture.h"

/* The cookie header of a session with this token, made by signing in with the form; good until the next. */
static inline const char *const *session(struct api *api, const char *token)
{
    static char cookie[160];
    static const char *headers[] = {cookie, NULL};
    struct reply reply = {0};
    char body[160];
    snprintf(body, sizeof body, "token=%s&next=%%2Fruns", token);
    api_call(api, &reply, "POST", "/login", NULL, body, NULL);
    assert_http(&reply, 303);
    assert_holds(mlo_buf_str(&reply.headers), "Location: /runs\r\n");
    assert_holds(mlo_buf_str(&reply.headers), "; HttpOnly; SameSite=Strict");
    reply_clear(&reply);
    snprintf(cookie, sizeof cookie, "Cookie: mlopt_session=%s", token);
    return headers;
}

/* A page that one role may not open and another may: the session of the latter, and what its forms send. */
static inline const char *const *open_form(struct api *api, struct reply *reply, const char *path,
                                           enum mlo_role refused, enum mlo_role role, char csrf[96])
{
    api_call(api, reply, "GET", path, NULL, NULL, session(api, api->token[refused]));
    assert_http(reply, 403);
    const char *const *cookie = session(api, api->token[role]);
    api_call(api, reply, "GET", path, NULL, NULL, cookie);
    assert_http(reply, 200);
    reply_field(reply, "csrf", csrf);
    return cookie;
}

#endif
