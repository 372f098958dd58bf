// Serves one page on the loopback interface, read-only, until Ctrl-C: `octavo report RUN --watch`.
//
// Only programs on this machine can connect. A web page of another origin can make the browser send requests
// here, but it cannot read the answers: no CORS header is sent, the page may not be put into a frame, and a
// request whose Host is not this server's loopback address (DNS rebinding) is refused. Only GET and HEAD of
// the page are answered; nothing is written.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cstdint>
#include <functional>
#include <string>

namespace octavo::cli {

struct ServeOptions {
  std::uint16_t port = 0;    // 0: the system chooses one
  int refresh_seconds = 10;  // the browser loads the page again after this time
};

// Calls `page` for every request and `started` once, with the address. Returns after SIGINT or SIGTERM. The
// error names the port if it is in use. An error of `page` is shown to the browser, and serving goes on.
Status serve_page(const ServeOptions& options, const std::function<Result<std::string>()>& page,
                  const std::function<void(const std::string& url)>& started);

}  // namespace octavo::cli
