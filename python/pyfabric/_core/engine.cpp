#include "engine.hpp"

#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "clock.hpp"
#include "errors.hpp"
#include "sockets.hpp"

namespace pyfabric {
namespace {

constexpr size_t kScratchBytes = 4096;
constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kCloseNs = 5 * kSecond;   // the loop drains for at most 1 s; beyond this it hangs in the provider
constexpr int64_t kRevokeNs = 5 * kSecond;

const EngineOptions& checked(const EngineOptions& options) {
  if (!(options.post_deadline_s > 0 && options.post_deadline_s < 1e6)) throw std::invalid_argument("post_deadline_s must be positive seconds");
  return options;
}

}  // namespace

Engine::Engine(const EngineOptions& options)
    : slots_(std::make_shared<Slots>(options.slots, options.weight_bits)), options_(checked(options)) {
  fabric_ = std::make_shared<Fabric>(options.provider, options.node);
  provider_ = fabric_->provider();
  virtual_addresses_ = fabric_->virtual_addresses();
  endpoint_ = fabric_->endpoint_name();
  limits_ = {slots_->addressable(), slots_->max_weight(), fabric_->max_write_bytes(), fabric_->write_extents(), fabric_->inject_bytes()};
  scratch_bytes_ = std::make_unique<char[]>(kScratchBytes);
  scratch_ = std::make_shared<Region>(fabric_, reinterpret_cast<uint64_t>(scratch_bytes_.get()), kScratchBytes);
  const Grant grant = scratch_->grant("any", std::nullopt);
  Address address{provider_, endpoint_, virtual_addresses_, uint32_t(getpid()), this_host(), grant.base, grant.key};
  address_ = address.encode();
  const WorkerOptions worker{int64_t(options.post_deadline_s * double(kSecond)), options.spin};
  worker_ = std::make_shared<Worker>(fabric_, waker_, events_, slots_, scratch_, limits_, worker, endpoint_);
}

Engine::~Engine() {
  try {
    close();
  } catch (const std::exception&) {
    // close() has already left the hanging thread its own references; a destructor has nobody to tell.
  }
}

void Engine::require_open(const char* call) const {
  if (closed_) throw std::invalid_argument(std::string(call) + ": the engine is closed");
}

void Engine::require_peer(int64_t peer) const {
  if (!peers_.count(peer)) throw std::invalid_argument("peer " + std::to_string(peer) + " is not connected");
}

void Engine::start() {
  const std::lock_guard lock(mutex_);
  require_open("start");
  if (started_) return;
  started_ = true;
  Worker::start(worker_);
}

void Engine::close() {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
  }
  if (!worker_->stop(kCloseNs)) {
    // The thread keeps its references; the memory that the provider may still touch is leaked on purpose.
    scratch_bytes_.release();
    throw FabricFailure(FI_ETIMEDOUT, "close: the worker hangs inside provider " + provider_ + " and was left behind");
  }
  fabric_->close_endpoint();
  worker_->fail_leftovers();
  for (auto& weak : regions_)
    if (auto region = weak.lock()) region->close_by_engine();
  scratch_->close_by_engine();
  worker_->release_fabric();
  fabric_.reset();
}

std::shared_ptr<Region> Engine::register_memory(uint64_t address, uint64_t nbytes) {
  const std::lock_guard lock(mutex_);
  require_open("register");
  auto region = std::make_shared<Region>(fabric_, address, nbytes);
  std::erase_if(regions_, [](const auto& weak) { return weak.expired(); });
  regions_.push_back(region);
  return region;
}

bool Engine::revoke(Region& region, const std::string& peer) {
  std::optional<Address> writer;
  if (!region.revoke(peer, writer)) return false;
  bool running = false;
  {
    const std::lock_guard lock(mutex_);
    running = started_ && !closed_;
  }
  if (!running) return true;
  // A write that was half received goes on landing until its connection ends; and the worker may have looked the key up
  // just before. The fence holds once the sockets are empty and the worker has come around.
  const auto cut = cut_accepted(endpoint_, writer ? &*writer : nullptr);
  const int64_t give_up = now_ns() + kRevokeNs;
  do {
    if (now_ns() > give_up || !worker_->pass_by(kRevokeNs))
      throw FabricFailure(FI_ETIMEDOUT, "revoke: the worker hangs inside provider " + provider_);
  } while (!drained(cut));
  return true;
}

int64_t Engine::connect(const std::string& blob) {
  Address target = Address::decode(blob);
  if (target.provider != provider_)
    throw std::invalid_argument("connect: the peer speaks provider " + target.provider + ", this engine " + provider_);
  const std::lock_guard lock(mutex_);
  require_open("connect");
  const int64_t peer = next_peer_++;
  peers_.insert(peer);
  worker_->add_peer(peer, std::move(target));
  return peer;
}

void Engine::warm(int64_t peer) {
  const std::lock_guard lock(mutex_);
  require_open("warm");
  require_peer(peer);
  worker_->warm(peer);
}

void Engine::disconnect(int64_t peer) {
  const std::lock_guard lock(mutex_);
  require_open("disconnect");
  require_peer(peer);
  peers_.erase(peer);
  worker_->disconnect(peer);
}

uint64_t Engine::arm(std::unique_ptr<Program> program) {
  validate(*program, limits_);
  const std::lock_guard lock(mutex_);
  require_open("arm");
  for (const Lane& lane : program->lanes) {
    require_peer(lane.spec.peer);
    if (lane.spec.source->closed()) throw std::invalid_argument("arm: a source region is closed");
  }
  const uint64_t handle = program->handle = next_handle_++;
  worker_->arm(std::move(program));
  return handle;
}

void Engine::cancel(uint64_t handle) {
  const std::lock_guard lock(mutex_);
  require_open("cancel");
  if (handle == 0 || handle >= next_handle_) throw std::invalid_argument("cancel: no program has handle " + std::to_string(handle));
  worker_->cancel(handle);
}

std::map<std::string, uint64_t> Engine::stats() const {
  const Tallies& t = worker_->tallies;
  return {{"writes_posted", t.writes_posted}, {"pages_posted", t.pages_posted}, {"bytes_posted", t.bytes_posted},
          {"completions", t.completions},     {"errors", t.errors},             {"immediates", t.immediates},
          {"strays", slots_->strays()},       {"excess", slots_->excess()},     {"eagain", t.eagain},
          {"eagain_ns", t.eagain_ns},         {"in_flight", t.in_flight},       {"armed", t.armed},
          {"peers_lost", t.peers_lost},       {"abandoned", t.abandoned},       {"sleeps", t.sleeps}};
}

}  // namespace pyfabric
