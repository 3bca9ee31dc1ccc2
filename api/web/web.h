/* The public header of api/web: the pages, as a module of the server. Rendered on the server; they work
 * without JavaScript and are refreshed by a little of it. */
#ifndef MLO_WEB_H
#define MLO_WEB_H

#include "api/http/http.h"

/* For mlo_http_options.modules. */
const struct mlo_http_module *mlo_web_module(void);

#endif
