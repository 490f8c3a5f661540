#pragma once
// The console: pages for people who come to a listener with a browser. Clients' listener has the chat,
// operators' listener has the operations. The files are part of the program; nothing is read and nothing is
// fetched from elsewhere. Pure functions; thread safe.
//
// The pages are open to everybody who reaches the listener: pages hold no data. The data that a page shows
// come from the listener's other routes, with the key that the reader types. The headers of each response
// forbid a page all scripts, styles and requests but those of its own origin.

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "coordinator/http/http_response.h"

namespace somnus {

// Whether the headers Accept and If-None-Match matter for this target.
bool IsConsoleTarget(absl::string_view target);
// Whether a client with this Accept wants a page at "/", as browsers do.
bool PrefersPage(absl::string_view accept);

// The listener's page. `if_none_match`: the header's value; 304 where it names the page.
HttpResponse ConsolePage(bool admin, absl::string_view if_none_match);
// A file that a page names; nullopt: the listener has no such file.
std::optional<HttpResponse> ConsoleFile(bool admin, absl::string_view name, absl::string_view if_none_match);
// The response of "/" to programs: a 404 whose JSON also has the routes with which they may begin.
HttpResponse RootPointer(bool admin, bool has_console);

}  // namespace somnus
