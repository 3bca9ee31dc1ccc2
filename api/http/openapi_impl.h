/* What the build makes of api/openapi.yaml (tool/openapi_table.c). */
#ifndef MLO_HTTP_OPENAPI_IMPL_H
#define MLO_HTTP_OPENAPI_IMPL_H

#include "api/http/http.h"

extern const struct mlo_operation mlo_openapi_operations[];
extern const size_t mlo_openapi_operation_count;
extern const char *const mlo_openapi_json; /* with a line feed at its end */
extern const size_t mlo_openapi_json_size;

#endif
