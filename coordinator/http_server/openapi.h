#pragma once
// GET /openapi.json: the routes of a listener, and the fields of their bodies as the tables say by which the
// bodies are read (openai/field_table.h). Pure function; thread safe.

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace somnus {

// OpenAPI 3.1. `admin`: of operators' listener. The bodies of routes that are read by no table are any
// object. `root`: the prefix that paths have for clients; may be empty.
nlohmann::ordered_json OpenApi(bool admin, const std::string& version, const std::string& root);

}  // namespace somnus
