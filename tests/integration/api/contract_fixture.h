/* The contract as the server has it, api/openapi.yaml. */
#ifndef MLO_TESTS_CONTRACT_FIXTURE_H
#define MLO_TESTS_CONTRACT_FIXTURE_H

#include "api/http/http.h"
#include "tests/pg_fixture.h"

/* Yours. */
static inline json_t *contract_load(void)
{
    size_t size;
    struct mlo_error err = {0};
    json_t *contract = NULL;
    const char *text = mlo_http_contract(&size);
    assert_mlo_ok(mlo_json_parse(text, size, "contract", &contract, &err), &err);
    return contract;
}

/* The codes that a problem may have, an array of the contract. */
static inline json_t *contract_codes(const json_t *contract)
{
    const json_t *schemas = json_object_get(json_object_get(contract, "components"), "schemas");
    const json_t *properties = json_object_get(json_object_get(schemas, "Problem"), "properties");
    return json_object_get(json_object_get(properties, "code"), "enum");
}

#endif
