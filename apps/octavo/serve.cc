// Implements serve.h: a small HTTP/1.1 server that closes each connection after one answer.
// SPDX-License-Identifier: MIT
#include "apps/octavo/serve.h"

#include "train/base/text.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigaction is POSIX
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>

namespace octavo::cli {
namespace {

constexpr std::size_t kLongestRequest = 16384;
constexpr std::chrono::milliseconds kRequestTime{500};  // the time that a client has to send its request
constexpr int kPollMilliseconds = 200;

volatile sig_atomic_t stopped = 0;
void stop(int /*signal*/) { stopped = 1; }

class Socket {
 public:
  explicit Socket(int number) : number_(number) {}
  ~Socket() {
    if (number_ >= 0) close(number_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  [[nodiscard]] int number() const { return number_; }

 private:
  int number_;
};

// Replaces the handlers of SIGINT and SIGTERM while it exists.
class StopSignals {
 public:
  StopSignals() {
    struct sigaction action {};
    action.sa_handler = stop;
    sigaction(SIGINT, &action, &interrupt_);
    sigaction(SIGTERM, &action, &terminate_);
  }
  ~StopSignals() {
    sigaction(SIGINT, &interrupt_, nullptr);
    sigaction(SIGTERM, &terminate_, nullptr);
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  struct sigaction interrupt_ {
  }, terminate_{};
};

// Returns the bytes up to the empty line after the headers; fewer if the client stops before.
std::string read_request(int socket) {
  std::string text;
  std::array<char, 4096> part{};
  const auto end = std::chrono::steady_clock::now() + kRequestTime;
  while (text.size() < kLongestRequest && text.find("\r\n\r\n") == std::string::npos) {
    pollfd ready{socket, POLLIN, 0};
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0 || poll(&ready, 1, static_cast<int>(left.count())) <= 0) break;
    const ssize_t got = recv(socket, part.data(), part.size(), 0);
    if (got <= 0) break;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  return text;
}

std::string header(std::string_view request, std::string_view name) {
  for (std::size_t at = request.find("\r\n"); at != std::string::npos; at = request.find("\r\n", at + 2)) {
    const std::size_t begin = at + 2, colon = request.find(':', begin), end = request.find("\r\n", begin);
    if (colon >= end || octavo_train::lower(request.substr(begin, colon - begin)) != name) continue;
    std::string_view value = request.substr(colon + 1, end - colon - 1);
    while (!value.empty() && value.front() == ' ') value.remove_prefix(1);
    while (!value.empty() && value.back() == ' ') value.remove_suffix(1);
    return std::string(value);
  }
  return {};
}

struct Answer {
  std::string_view status = "200 OK";
  std::string_view type = "text/html; charset=utf-8";
  std::string body, more_headers;
};

Answer refusal(std::string_view status, std::string body, std::string more_headers = {}) {
  return {status, "text/plain; charset=utf-8", std::move(body) + "\n", std::move(more_headers)};
}

Answer answer(std::string_view request, std::uint16_t port, const ServeOptions& options,
              const std::function<Result<std::string>()>& page) {
  const std::string_view line = request.substr(0, request.find("\r\n"));
  const std::string_view method = line.substr(0, line.find(' '));
  const std::size_t target = std::min(method.size() + 1, line.size());
  const std::string_view path = line.substr(target, line.find(' ', target) - target);
  const bool http = line.ends_with(" HTTP/1.1") || line.ends_with(" HTTP/1.0");
  if (!http || request.find("\r\n\r\n") == std::string_view::npos)
    return refusal("400 Bad Request", "not an HTTP request");
  const std::string_view headers = request.substr(0, request.find("\r\n\r\n") + 2);
  const std::string host = header(headers, "host"), end = ":" + std::to_string(port);
  const bool default_port = port == 80 && (host == "127.0.0.1" || host == "localhost");
  if (host != "127.0.0.1" + end && host != "localhost" + end && !default_port)
    return refusal("403 Forbidden", "open http://127.0.0.1" + end + "/");
  if (method != "GET" && method != "HEAD")
    return refusal("405 Method Not Allowed", "the report is read-only", "Allow: GET, HEAD\r\n");
  if (path != "/") return refusal("404 Not Found", "the report is at /");
  const std::string refresh = "Refresh: " + std::to_string(options.refresh_seconds) + "\r\n";
  Result<std::string> text = page();
  if (!text.ok()) return refusal("503 Service Unavailable", text.status().message(), refresh);
  Answer out;
  out.body = std::move(*text);
  out.more_headers = refresh;
  return out;
}

void send_all(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;  // the browser has closed the connection
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

Status system_error_status(const std::string& what) {
  return Status::failed(what + ": " + std::strerror(errno));
}

}  // namespace

Status serve_page(const ServeOptions& options, const std::function<Result<std::string>()>& page,
                  const std::function<void(const std::string& url)>& started) {
  const Socket server(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (server.number() < 0) return system_error_status("no socket");
  const int on = 1;
  setsockopt(server.number(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(options.port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (bind(server.number(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(server.number(), 16) != 0 ||
      getsockname(server.number(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return system_error_status("--port: port " + std::to_string(options.port) +
                               " of 127.0.0.1 cannot be opened");
  const std::uint16_t port = ntohs(address.sin_port);

  stopped = 0;
  const StopSignals signals;
  started("http://127.0.0.1:" + std::to_string(port) + "/");
  while (stopped == 0) {
    pollfd ready{server.number(), POLLIN, 0};
    if (poll(&ready, 1, kPollMilliseconds) <= 0) continue;
    const Socket client(accept4(server.number(), nullptr, nullptr, SOCK_CLOEXEC));
    if (client.number() < 0) continue;
    timeval limit{2, 0};
    setsockopt(client.number(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    const std::string request = read_request(client.number());
    if (request.empty()) continue;
    const Answer out = answer(request, port, options, page);
    send_all(client.number(),
             "HTTP/1.1 " + std::string(out.status) + "\r\nContent-Type: " + std::string(out.type) +
                 "\r\nContent-Length: " + std::to_string(out.body.size()) +
                 "\r\nConnection: close\r\nCache-Control: no-store\r\nX-Frame-Options: DENY\r\n"
                 "X-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\n"
                 "Cross-Origin-Opener-Policy: same-origin\r\nReferrer-Policy: no-referrer\r\n" +
                 out.more_headers + "\r\n");
    if (!request.starts_with("HEAD ")) send_all(client.number(), out.body);
  }
  return {};
}

}  // namespace octavo::cli
