// The least that a program can do to move pages through libfabric, to compare pyfabric with: one sender, one receiver
// (a forked process), one endpoint each, both spinning on their completion queues while a job runs.
//
//   raw PROVIDER MEMORY POOL_BYTES     MEMORY: small | huge (anonymous pages), memfd | memfd-huge (shared)
//
// Jobs come on stdin: FORM LAYER_BYTES LAYERS WRITES, then for each write its "source destination nbytes" extents and a
// -1. FORM: write (PROVIDER a libfabric name), memcpy or nontemporal (PROVIDER copy). Answers the job's nanoseconds.
#include <immintrin.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr uint64_t kSourceKey = 7, kTargetKey = 9;

int64_t now_ns() {
  timespec ts{};
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return int64_t(ts.tv_sec) * 1'000'000'000 + ts.tv_nsec;
}

void must(long rc, const char* what) {
  if (rc >= 0) return;
  fprintf(stderr, "%s: %s\n", what, fi_strerror(int(-rc)));
  exit(1);
}

// What the two processes share besides the fabric.
struct Control {
  char name[256];
  size_t name_size;
  uint64_t base, key;
  std::atomic<int> ready;
  std::atomic<uint64_t> expected;  // immediates of the job, 0 between jobs
  std::atomic<int64_t> done_ns;
};

char* allocate(const std::string& kind, size_t nbytes) {
  const bool shared = kind.starts_with("memfd");
  const int fd = shared ? memfd_create("raw", 0) : -1;
  if (shared && ftruncate(fd, long(nbytes))) exit(1);
  void* p = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
  if (p == MAP_FAILED) exit(1);
  if (kind.ends_with("huge")) madvise(p, nbytes, MADV_HUGEPAGE);
  memset(p, 1, nbytes);
  return static_cast<char*>(p);
}

struct Endpoint {
  fi_info* info = nullptr;
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
  fid_cq* cq = nullptr;
  fid_av* av = nullptr;
  fid_ep* ep = nullptr;
  fid_mr* mr = nullptr;

  Endpoint(const char* provider, char* pool, size_t nbytes, uint64_t key) {
    fi_info* hints = fi_allocinfo();
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED;
    hints->domain_attr->data_progress = hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    hints->fabric_attr->prov_name = strdup(provider);
    const bool shm = !strcmp(provider, "shm");
    must(fi_getinfo(FI_VERSION(1, 17), shm ? nullptr : "127.0.0.1", nullptr, shm ? 0 : FI_SOURCE, hints, &info), "fi_getinfo");
    must(fi_fabric(info->fabric_attr, &fabric, nullptr), "fi_fabric");
    must(fi_domain(fabric, info, &domain, nullptr), "fi_domain");
    fi_cq_attr cq_attr{};
    cq_attr.format = FI_CQ_FORMAT_DATA;
    cq_attr.size = 16384;
    must(fi_cq_open(domain, &cq_attr, &cq, nullptr), "fi_cq_open");
    fi_av_attr av_attr{};
    must(fi_av_open(domain, &av_attr, &av, nullptr), "fi_av_open");
    must(fi_endpoint(domain, info, &ep, nullptr), "fi_endpoint");
    must(fi_ep_bind(ep, &av->fid, 0), "fi_ep_bind");
    must(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    must(fi_enable(ep), "fi_enable");
    must(fi_mr_reg(domain, pool, nbytes, FI_WRITE | FI_READ | FI_REMOTE_WRITE, 0, key, 0, &mr, nullptr), "fi_mr_reg");
  }
  ~Endpoint() {
    fi_close(&ep->fid);
    fi_close(&mr->fid);
    fi_close(&av->fid);
    fi_close(&cq->fid);
    fi_close(&domain->fid);
    fi_close(&fabric->fid);
  }
};

[[noreturn]] void receive(const char* provider, const std::string& memory, size_t nbytes, Control& control) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  static std::atomic<bool> stop{false};
  signal(SIGTERM, [](int) { stop = true; });
  char* pool = allocate(memory, nbytes);
  {
    Endpoint end(provider, pool, nbytes, kTargetKey);
    control.name_size = sizeof control.name;
    must(fi_getname(&end.ep->fid, control.name, &control.name_size), "fi_getname");
    control.base = end.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? uint64_t(pool) : 0;
    control.key = fi_mr_key(end.mr);
    control.ready = 1;
    for (uint64_t got = 0; !stop;) {
      fi_cq_data_entry entries[64];
      const ssize_t n = fi_cq_read(end.cq, entries, 64);
      for (ssize_t i = 0; i < n; ++i) got += (entries[i].flags & FI_REMOTE_WRITE) ? entries[i].data : 0;
      const uint64_t expected = control.expected;
      if (expected && got >= expected) {
        got = 0;
        control.expected = 0;
        control.done_ns = now_ns();
      }
      if (n <= 0) expected ? sched_yield() : usleep(100);
    }
  }
  _exit(0);
}

struct Extent {
  uint64_t source, destination, nbytes;
};
struct Job {
  std::string form;
  uint64_t layer_bytes, layers;
  std::vector<std::vector<Extent>> writes;
};

bool read_job(Job& job) {
  char form[32];
  uint64_t writes = 0;
  if (scanf("%31s %lu %lu %lu", form, &job.layer_bytes, &job.layers, &writes) != 4) return false;
  job.form = form;
  job.writes.assign(writes, {});
  for (auto& write : job.writes)
    for (long first = 0; scanf("%ld", &first) == 1 && first >= 0;) {
      Extent e{uint64_t(first), 0, 0};
      if (scanf("%lu %lu", &e.destination, &e.nbytes) != 2) return false;
      write.push_back(e);
    }
  return true;
}

int64_t run_writes(const Job& job, Endpoint& end, fi_addr_t peer, char* pool, Control& control) {
  const size_t window = end.info->tx_attr->size;
  static std::vector<fi_context2> contexts(65536);
  uint64_t posted = 0, completed = 0;
  void* descriptor = fi_mr_desc(end.mr);
  void* descriptors[16];
  for (auto& d : descriptors) d = descriptor;
  control.done_ns = 0;
  control.expected = job.layers * job.writes.size();
  const auto reap = [&] {
    fi_cq_data_entry entries[64];
    const ssize_t n = fi_cq_read(end.cq, entries, 64);
    if (n > 0) completed += uint64_t(n);
    else if (n != -FI_EAGAIN) must(n, "fi_cq_read");
    else sched_yield();  // the machine may be shared
  };
  const int64_t start = now_ns();
  for (uint64_t layer = 0; layer < job.layers; ++layer) {
    for (const auto& write : job.writes) {
      iovec local[16];
      fi_rma_iov remote[16];
      for (size_t i = 0; i < write.size(); ++i) {
        local[i] = {pool + layer * job.layer_bytes + write[i].source, write[i].nbytes};
        remote[i] = {control.base + layer * job.layer_bytes + write[i].destination, write[i].nbytes, control.key};
      }
      const fi_msg_rma message{local, descriptors, write.size(), peer, remote, write.size(), &contexts[posted % contexts.size()], 1};
      while (posted - completed >= window) reap();
      long rc = 0;
      while ((rc = fi_writemsg(end.ep, &message, FI_REMOTE_CQ_DATA | FI_DELIVERY_COMPLETE | FI_COMPLETION)) == -FI_EAGAIN) reap();
      must(rc, "fi_writemsg");
      if (++posted % 64 == 0) reap();
    }
  }
  while (completed < posted || control.done_ns == 0) reap();
  return std::max(control.done_ns.load(), now_ns()) - start;
}

__attribute__((target("avx512f"))) void stream_wide(char* to, const char* from, size_t nbytes) {
  for (size_t i = 0; i < nbytes; i += 256) {
    const __m512i a = _mm512_loadu_si512(from + i), b = _mm512_loadu_si512(from + i + 64);
    const __m512i c = _mm512_loadu_si512(from + i + 128), d = _mm512_loadu_si512(from + i + 192);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 64), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 128), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 192), d);
  }
}

__attribute__((target("avx2"))) void stream_half(char* to, const char* from, size_t nbytes) {
  for (size_t i = 0; i < nbytes; i += 128) {
    const auto* in = reinterpret_cast<const __m256i*>(from + i);
    auto* out = reinterpret_cast<__m256i*>(to + i);
    const __m256i a = _mm256_loadu_si256(in), b = _mm256_loadu_si256(in + 1);
    const __m256i c = _mm256_loadu_si256(in + 2), d = _mm256_loadu_si256(in + 3);
    _mm256_stream_si256(out, a);
    _mm256_stream_si256(out + 1, b);
    _mm256_stream_si256(out + 2, c);
    _mm256_stream_si256(out + 3, d);
  }
}

const auto kStream = __builtin_cpu_supports("avx512f") ? stream_wide : stream_half;

int64_t run_copies(const Job& job, const char* from, char* to) {
  const bool nontemporal = job.form == "nontemporal";
  const int64_t start = now_ns();
  for (uint64_t layer = 0; layer < job.layers; ++layer)
    for (const auto& write : job.writes)
      for (const Extent& e : write) {
        const char* source = from + layer * job.layer_bytes + e.source;
        char* destination = to + layer * job.layer_bytes + e.destination;
        if (!nontemporal) {
          memcpy(destination, source, e.nbytes);
          continue;
        }
        kStream(destination, source, e.nbytes);
        _mm_sfence();
      }
  return now_ns() - start;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return fprintf(stderr, "raw PROVIDER|copy MEMORY POOL_BYTES\n"), 2;
  const std::string provider = argv[1], memory = argv[2];
  const size_t nbytes = strtoull(argv[3], nullptr, 10);
  Job job;
  if (provider == "copy") {
    char *from = allocate(memory, nbytes), *to = allocate(memory, nbytes);
    for (puts("ready"), fflush(stdout); read_job(job); fflush(stdout)) printf("%ld\n", run_copies(job, from, to));
    return 0;
  }
  auto* control = new (mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Control{};
  const pid_t child = fork();
  if (child == 0) receive(provider.c_str(), memory, nbytes, *control);
  char* pool = allocate(memory, nbytes);
  {
    Endpoint end(provider.c_str(), pool, nbytes, kSourceKey);
    while (!control->ready) usleep(1000);
    fi_addr_t peer = 0;
    if (fi_av_insert(end.av, control->name, 1, &peer, 0, nullptr) != 1) return 1;
    for (puts("ready"), fflush(stdout); read_job(job); fflush(stdout)) printf("%ld\n", run_writes(job, end, peer, pool, *control));
    kill(child, SIGTERM);
  }
  return 0;
}
