// A STOMP client in JavaScript: sends three jobs to a queue of the node on this machine, and receives them.
//
//     carrypost node --set stomp.port=61613
//     npm install @stomp/stompjs
//     node stomp_client.mjs [PORT] [TOKEN_FILE]
//
// @stomp/stompjs speaks over WebSockets; the class below gives it a TCP socket instead. It connects again by itself,
// after a second, whenever the connection is lost: the first receipt says that the queue is there and subscribed to.

import { readFileSync } from "node:fs";
import net from "node:net";
import { homedir } from "node:os";
import { join } from "node:path";
import { argv } from "node:process";

import { Client } from "@stomp/stompjs";

const port = Number(argv[2] ?? 61613);
const token = readFileSync(argv[3] ?? join(homedir(), ".local/share/carrypost/stomp.token"), "utf8").trim();
const jobs = 3;

/** A TCP socket with the methods and events of a WebSocket. */
class TcpSocket {
  url = `tcp://127.0.0.1:${port}`;
  readyState = 0; // connecting; 1: open, 2: closing, 3: closed

  constructor() {
    this.socket = net.connect(port, "127.0.0.1", () => {
      this.readyState = 1;
      this.onopen?.();
    });
    this.socket.on("data", (data) => this.onmessage?.({ data: new Uint8Array(data).buffer }));
    this.socket.on("error", (error) => this.onerror?.(error));
    this.socket.on("close", () => {
      this.readyState = 3;
      this.onclose?.({ code: 1000, reason: "", wasClean: true });
    });
  }

  send(data) {
    this.socket.write(data);
  }

  close() {
    this.readyState = 2;
    this.socket.end();
  }
}

let done = 0;
const client = new Client({
  webSocketFactory: () => new TcpSocket(),
  connectHeaders: { login: "me", passcode: token },
  reconnectDelay: 1_000,
  heartbeatIncoming: 10_000,
  heartbeatOutgoing: 10_000,
});

client.onStompError = (frame) => {
  console.error(`the node says: ${frame.headers.message}`);
  process.exitCode = 1;
  client.deactivate();
};

client.onConnect = () => {
  client.watchForReceipt("subscribed", () => {
    for (let number = 0; number < jobs; number++) {
      const headers = { persistent: "true", number: String(number), "carrypost-types": "number=int" };
      client.publish({ destination: "/queue/jobs", body: `job ${number}`, headers });
    }
  });
  const headers = { ack: "client-individual", selector: "number >= 0", receipt: "subscribed" };
  client.subscribe("/queue/jobs", work, headers);
};

/** Does one job, and acknowledges it: one that is not acknowledged comes again. */
function work(message) {
  console.log(`${message.headers.destination.split("@")[0]}: ${message.body}`);
  message.ack();
  done += 1;
  if (done === jobs) client.deactivate();
}

client.activate();
