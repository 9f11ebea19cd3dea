{{/* Labels of every object. */}}
{{- define "dalsegno.labels" -}}
{{ include "dalsegno.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels that all pods of the release have, and no other pods. */}}
{{- define "dalsegno.selector" -}}
app.kubernetes.io/name: dalsegno
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* "true" if the store is PostgreSQL. */}}
{{- define "dalsegno.postgres" -}}
{{- if .Values.postgres.existingSecret.name }}true{{ end }}
{{- end }}

{{/* "true" if the store encrypts what workers write. */}}
{{- define "dalsegno.encryption" -}}
{{- $secret := .Values.encryption.existingSecret }}
{{- $by_store := not (empty (or $secret (include "dalsegno.postgres" .))) }}
{{- if ternary $by_store .Values.encryption.enabled (kindIs "invalid" .Values.encryption.enabled) }}
{{- if not $secret }}
{{- fail (printf "encryption, which is on by default with PostgreSQL, needs a Secret with a key: run `kubectl create secret generic dalsegno-keys --namespace %s --from-literal=k1=\"$(openssl rand -base64 32)\"`, keep a copy of the key in a safe place, and set encryption.existingSecret=dalsegno-keys; or set encryption.enabled=false" .Release.Namespace) }}
{{- end }}true{{ end }}
{{- end }}

{{/* The component whose pods serve the workers. */}}
{{- define "dalsegno.gatewayComponent" -}}
{{- if include "dalsegno.postgres" . }}gateway{{ else }}operator{{ end }}
{{- end }}

{{/* Nobody publishes an image: the default reference would be one that no cluster can pull. */}}
{{- define "dalsegno.image" -}}
{{- with .Values.image }}
{{- if and (eq .repository "dalsegno") (not (or .registry .tag .digest)) }}
{{- fail "no image of Dal Segno is published: in a clone of the repository, build one with `docker build --file deploy/Dockerfile --tag HOST/PREFIX/dalsegno:dev .`, push it with `docker push HOST/PREFIX/dalsegno:dev`, and set image.registry=HOST, image.repository=PREFIX/dalsegno and image.tag=dev" }}
{{- end }}
{{- end }}
{{- $image := .Values.image.repository }}
{{- with .Values.image.registry }}{{ $image = printf "%s/%s" . $image }}{{ end }}
{{- $tag := .Values.image.tag | default (ternary "" .Chart.AppVersion (not (empty .Values.image.digest))) }}
{{- with $tag }}{{ $image = printf "%s:%s" $image . }}{{ end }}
{{- with .Values.image.digest }}{{ $image = printf "%s@%s" $image . }}{{ end }}
{{- $image }}
{{- end }}

{{/* The gateway's base URL for workers. */}}
{{- define "dalsegno.gatewayURL" -}}
{{- $plain := eq .Values.gateway.tls.mode "off" -}}
{{ ternary "http" "https" $plain }}://dalsegno-gateway.{{ .Release.Namespace }}.svc{{ with .Values.clusterDomain }}.{{ . }}{{ end }}:{{ ternary 8080 8443 $plain }}
{{- end }}

{{/* The Secret with a certificate that the operator does not issue itself. */}}
{{- define "dalsegno.tlsSecret" -}}
{{- with .Values.gateway.tls }}
{{- if eq .mode "certManager" }}dalsegno-gateway-certificate
{{- else if eq .mode "secret" }}
{{- if has .secret.name (list "dalsegno-tls" "dalsegno-ca") }}
{{- fail (printf "gateway.tls.secret.name must not be %s, which the operator writes itself" .secret.name) }}
{{- end }}
{{- required "gateway.tls.mode=secret needs gateway.tls.secret.name: a Secret of type kubernetes.io/tls that also has ca.crt" .secret.name }}
{{- end }}
{{- end }}
{{- end }}

{{/* TLS between workers, users and the gateway. */}}
{{- define "dalsegno.env.tls" -}}
{{- with .Values.gateway.tls -}}
- name: DALSEGNO_GATEWAY_TLS
  value: {{ ternary "secret" .mode (has .mode (list "certManager" "secret")) | quote }}
- name: DALSEGNO_GATEWAY_TLS_LISTEN
  value: {{ printf "%s:8443" $.Values.listenAddress | quote }}
{{- with include "dalsegno.tlsSecret" $ }}
- name: DALSEGNO_GATEWAY_TLS_SECRET
  value: {{ . }}
{{- end }}
{{- with $.Values.clusterDomain }}
- name: DALSEGNO_CLUSTER_DOMAIN
  value: {{ . }}
{{- end }}
- name: DALSEGNO_CERTIFICATE_LIFETIME
  value: {{ .certificateLifetime | quote }}
- name: DALSEGNO_CA_LIFETIME
  value: {{ .caLifetime | quote }}
- name: DALSEGNO_CA_SETTLE
  value: {{ .settle | quote }}
- name: DALSEGNO_CA_KEEP
  value: {{ .keepOldCA | quote }}
{{- end }}
{{- end }}

{{/* "true" if people reach the payloads of runs through the API server. */}}
{{- define "dalsegno.aggregated" -}}
{{- $value := toString .Values.peopleApi.aggregated }}
{{- $has_tls := ne .Values.gateway.tls.mode "off" }}
{{- if eq $value "auto" }}
{{- if and $has_tls (include "dalsegno.postgres" .) }}true{{ end }}
{{- else if eq $value "true" }}
{{- if not $has_tls }}
{{- fail "peopleApi.aggregated=true needs a certificate for the gateway: gateway.tls.mode must not be off" }}
{{- end }}true{{ end }}
{{- end }}

{{/* The claim of the embedded store. */}}
{{- define "dalsegno.claim" -}}
{{ .Values.persistence.existingClaim | default "dalsegno" }}
{{- end }}

{{- define "dalsegno.podMetadata" -}}
labels:
  {{- include "dalsegno.selector" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
  {{- with .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .root.Values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The fields that the specs of all pods share. */}}
{{- define "dalsegno.podSpec" -}}
automountServiceAccountToken: true
enableServiceLinks: false
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The fields that all containers share. */}}
{{- define "dalsegno.container" -}}
image: {{ include "dalsegno.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- with .Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
Spreads the pods of one component over nodes, and over zones if the nodes have any. Nodes are spread by an anti-affinity:
a scheduler that spreads by a label of zones as well ignores every node without that label. A podAntiAffinity in the value
affinity replaces this one.
*/}}
{{- define "dalsegno.spread" -}}
{{- $pods := printf "%s\napp.kubernetes.io/component: %s" (include "dalsegno.selector" .root) .component | fromYaml }}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $pods) }}
{{- $preferred := list (dict "weight" 100 "podAffinityTerm" $term) }}
{{- $affinity := dict "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" $preferred) }}
affinity:
  {{- toYaml (merge (deepCopy .root.Values.affinity) (ternary (dict) $affinity (hasKey .root.Values.affinity "podAntiAffinity"))) | nindent 2 }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- toYaml $pods | nindent 8 }}
{{- end }}

{{/* Allows the eviction of one pod of a component at a time. */}}
{{- define "dalsegno.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "dalsegno.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "dalsegno.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Number of operators: the value, or else two with PostgreSQL, one of which is a standby, and one with SQLite. */}}
{{- define "dalsegno.operatorReplicas" -}}
{{- if kindIs "invalid" .Values.operator.replicas }}{{ ternary 2 1 (not (empty (include "dalsegno.postgres" .))) }}
{{- else }}{{ .Values.operator.replicas }}{{ end }}
{{- end }}

{{/* "true" if there are several operators, of which one leads. */}}
{{- define "dalsegno.leaderElection" -}}
{{- if gt (int (include "dalsegno.operatorReplicas" .)) 1 }}true{{ end }}
{{- end }}

{{/* A value of memory, such as 64Mi or 1Gi, in Mi. */}}
{{- define "dalsegno.mebibytes" -}}
{{- if hasSuffix "Gi" . }}{{ mul 1024 (int (trimSuffix "Gi" .)) }}{{ else }}{{ int (trimSuffix "Mi" .) }}{{ end }}
{{- end }}

{{/* The value `name` of the given values in Mi. Refuses one that is less than the program accepts. */}}
{{- define "dalsegno.atLeast" -}}
{{- $size := include "dalsegno.mebibytes" (get .of .name) }}
{{- if lt (int $size) .least }}{{ fail (printf "memory.%s must be at least %dMi" .name .least) }}{{ end }}{{ $size }}
{{- end }}

{{/*
Most memory of a gateway in Mi: the sum of what its limits allow for. The program computes the same (Config::memory_bytes
in operator/gateway/src/config.rs), and docs/guides/in-production.md explains the terms.
*/}}
{{- define "dalsegno.gatewayMemory" -}}
{{- with .Values.gateway }}
{{- $connections := div (add (mul (int .connections.max) 32) 1023) 1024 }}
{{- $requests := mul 4 (include "dalsegno.atLeast" (dict "of" .memory "name" "requestBodies" "least" 16)) }}
{{- $resumes := max 128 (include "dalsegno.atLeast" (dict "of" .memory "name" "resumeReads" "least" 72)) }}
{{- $inspections := max 128 (include "dalsegno.atLeast" (dict "of" .memory "name" "inspectionReads" "least" 72)) }}
{{- $states := mul 2 (add 80 $resumes $inspections) }}
{{- $pages := mul 2 (include "dalsegno.atLeast" (dict "of" .memory "name" "pageReads" "least" 4)) }}
{{- add 56 $connections $requests (include "dalsegno.atLeast" (dict "of" .memory "name" "responses" "least" 160)) $states $pages (include "dalsegno.mebibytes" .memory.deltaBases) }}
{{- end }}
{{- end }}

{{/* Most memory of the operator's pod in Mi. With the embedded store it is a gateway too, and they share its state reads. */}}
{{- define "dalsegno.operatorMemory" -}}
{{- with .Values.operator.memory }}
{{- $own := add (include "dalsegno.mebibytes" .cache) (include "dalsegno.mebibytes" .commands) }}
{{- if include "dalsegno.postgres" $ }}
{{- add 32 $own (mul 2 (max 128 (include "dalsegno.atLeast" (dict "of" . "name" "stateReads" "least" 72)))) }}
{{- else }}
{{- add $own (include "dalsegno.gatewayMemory" $) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Resources of a container: the given ones. If neither a request nor a limit of memory is given, both are the sum. A limit
alone is also the request. A request alone has no limit: one below the sum would end the container under load. */}}
{{- define "dalsegno.resources" -}}
{{- $request := dig "requests" "memory" "" .resources }}
{{- $limit := dig "limits" "memory" "" .resources }}
{{- $requests := dict "memory" (coalesce $request $limit .memory) }}
{{- $limits := dict }}
{{- if or $limit (not $request) }}
{{- $_ := set $limits "memory" (coalesce $limit .memory) }}
{{- end }}
{{- toYaml (mergeOverwrite (deepCopy .resources) (dict "requests" $requests "limits" $limits)) }}
{{- end }}

{{- define "dalsegno.probes" -}}
startupProbe:
  httpGet: { path: /healthz, port: health }
  periodSeconds: 1
  failureThreshold: 300
livenessProbe:
  httpGet: { path: /healthz, port: health }
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: { path: /readyz, port: health }
  periodSeconds: 2
  timeoutSeconds: 2
{{- end }}

{{- define "dalsegno.env.common" -}}
- name: DALSEGNO_LOG
  value: {{ .Values.log | quote }}
- name: DALSEGNO_DATABASE_URL
  {{- if include "dalsegno.postgres" . }}
  valueFrom:
    secretKeyRef:
      name: {{ .Values.postgres.existingSecret.name }}
      key: {{ .Values.postgres.existingSecret.key }}
  {{- else }}
  value: sqlite:///var/lib/dalsegno/dalsegno.db
  {{- end }}
{{- end }}

{{/* The connections of operator and gateway. */}}
{{- define "dalsegno.env.connections" -}}
{{- with .Values.postgres.connections -}}
- name: DALSEGNO_DATABASE_MAX_CONNECTIONS
  value: {{ .max | quote }}
- name: DALSEGNO_DATABASE_MAX_READ_CONNECTIONS
  value: {{ .maxReads | quote }}
- name: DALSEGNO_DATABASE_STATEMENT_TIMEOUT
  value: {{ .statementTimeout | quote }}
- name: DALSEGNO_DATABASE_CONNECTION_LIFETIME
  value: {{ .lifetime | quote }}
{{- end }}
{{- end }}

{{/* The encryption keys, for processes that read and write runs: environment, mount, volume. */}}
{{- define "dalsegno.env.encryption" -}}
- name: DALSEGNO_ENCRYPTION_KEYS
  value: /etc/dalsegno/keys
{{- end }}

{{- define "dalsegno.encryption.mount" -}}
- name: encryption-keys
  mountPath: /etc/dalsegno/keys
  readOnly: true
{{- end }}

{{- define "dalsegno.encryption.volume" -}}
- name: encryption-keys
  secret:
    secretName: {{ .Values.encryption.existingSecret }}
    defaultMode: 0440
{{- end }}

{{/* The key that signs anchors and bundles: environment, mount, volume. */}}
{{- define "dalsegno.signingKey.env" -}}
{{- with .Values.signingKey.existingSecret }}
{{- if .name }}
- name: DALSEGNO_SIGNING_KEY
  value: /etc/dalsegno/signing/{{ .key }}
{{- end }}
{{- end }}
{{- end }}

{{- define "dalsegno.signingKey.mount" -}}
{{- if .Values.signingKey.existingSecret.name }}
- name: signing-key
  mountPath: /etc/dalsegno/signing
  readOnly: true
{{- end }}
{{- end }}

{{- define "dalsegno.signingKey.volume" -}}
{{- with .Values.signingKey.existingSecret }}
{{- if .name }}
- name: signing-key
  secret:
    secretName: {{ .name }}
    defaultMode: 0440
    items:
      - key: {{ .key }}
        path: {{ .key }}
{{- end }}
{{- end }}
{{- end }}

{{/* The volume of the sink of anchors, if it is a file: mount, volume. */}}
{{- define "dalsegno.anchors.mount" -}}
{{- if eq .Values.anchors.sink "file" }}
- name: anchors
  mountPath: /var/lib/dalsegno-anchors
{{- end }}
{{- end }}

{{- define "dalsegno.anchors.volume" -}}
{{- if eq .Values.anchors.sink "file" }}
- name: anchors
  persistentVolumeClaim:
    claimName: {{ required "anchors.sink=file needs anchors.file.existingClaim: the claim that keeps the anchors" .Values.anchors.file.existingClaim }}
{{- end }}
{{- end }}

{{/* The receiver of notifications: environment, mount, volume. */}}
{{- define "dalsegno.notifications.env" -}}
{{- with .Values.notifications }}
{{- if .url }}
- name: DALSEGNO_NOTIFICATIONS_URL
  value: {{ .url | quote }}
- name: DALSEGNO_NOTIFICATIONS_SECRET_FILE
  value: /etc/dalsegno/notifications/{{ .existingSecret.key }}
{{- with .kinds }}
- name: DALSEGNO_NOTIFICATIONS_KINDS
  value: {{ join "," . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "dalsegno.notifications.mount" -}}
{{- if .Values.notifications.url }}
- name: notifications
  mountPath: /etc/dalsegno/notifications
  readOnly: true
{{- end }}
{{- end }}

{{- define "dalsegno.notifications.volume" -}}
{{- with .Values.notifications }}
{{- if .url }}
- name: notifications
  secret:
    secretName: {{ required "notifications.url needs notifications.existingSecret.name: the Secret that signs notifications" .existingSecret.name }}
    defaultMode: 0440
    items:
      - key: {{ .existingSecret.key }}
        path: {{ .existingSecret.key }}
{{- end }}
{{- end }}
{{- end }}

{{/* The CA of the PostgreSQL server: environment, mount, volume. SSL_CERT_FILE replaces the public CAs; PGSSLROOTCERT would add to them. */}}
{{- define "dalsegno.ca.env" -}}
{{- with .Values.postgres.caSecret }}
{{- if .name }}
- name: SSL_CERT_FILE
  value: /etc/dalsegno/ca/{{ .key }}
{{- end }}
{{- end }}
{{- end }}

{{- define "dalsegno.ca.mount" -}}
{{- if .Values.postgres.caSecret.name }}
- name: postgres-ca
  mountPath: /etc/dalsegno/ca
  readOnly: true
{{- end }}
{{- end }}

{{- define "dalsegno.ca.volume" -}}
{{- with .Values.postgres.caSecret }}
{{- if .name }}
- name: postgres-ca
  secret:
    secretName: {{ .name }}
    defaultMode: 0440
    items:
      - key: {{ .key }}
        path: {{ .key }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The allocator gives large buffers back as soon as they are free. Otherwise what was once in use stays with the process, and
the sum of the limits would not be the most that it takes.
*/}}
{{- define "dalsegno.env.allocator" -}}
- name: MALLOC_MMAP_THRESHOLD_
  value: "1048576"
- name: MALLOC_TRIM_THRESHOLD_
  value: "4194304"
- name: MALLOC_ARENA_MAX
  value: "8"
{{- end }}

{{- define "dalsegno.env.health" -}}
- name: DALSEGNO_HEALTH_LISTEN
  value: {{ printf "%s:8081" .Values.listenAddress | quote }}
{{- end }}

{{- define "dalsegno.env.gateway" -}}
- name: DALSEGNO_GATEWAY_LISTEN
  value: {{ printf "%s:8080" .Values.listenAddress | quote }}
{{- if include "dalsegno.aggregated" . }}
- name: DALSEGNO_AGGREGATED_LISTEN
  value: {{ printf "%s:%d" .Values.listenAddress (int .Values.peopleApi.port) | quote }}
{{- end }}
- name: DALSEGNO_GATEWAY_MAX_CONNECTIONS
  value: {{ int .Values.gateway.connections.max | quote }}
- name: DALSEGNO_GATEWAY_MAX_CONNECTIONS_PER_PEER
  value: {{ int .Values.gateway.connections.maxPerPeer | quote }}
{{- with .Values.gateway.memory }}
- name: DALSEGNO_GATEWAY_REQUEST_BYTES
  value: {{ .requestBodies }}
- name: DALSEGNO_GATEWAY_RESPONSE_BYTES
  value: {{ .responses }}
- name: DALSEGNO_GATEWAY_RESUME_BYTES
  value: {{ .resumeReads }}
- name: DALSEGNO_GATEWAY_INSPECTION_BYTES
  value: {{ .inspectionReads }}
- name: DALSEGNO_GATEWAY_PAGE_BYTES
  value: {{ .pageReads }}
- name: DALSEGNO_GATEWAY_DELTA_BASE_BYTES
  value: {{ .deltaBases }}
{{- end }}
{{- end }}

{{- define "dalsegno.env.operator" -}}
- name: DALSEGNO_GATEWAY_URL
  value: {{ include "dalsegno.gatewayURL" . }}
- name: DALSEGNO_PEOPLE_API
  value: {{ include "dalsegno.aggregated" . | default "false" | quote }}
- name: DALSEGNO_ANCHOR_EVERY
  value: {{ .Values.anchors.every | quote }}
- name: DALSEGNO_ANCHOR_SINK
  value: {{ .Values.anchors.sink }}
{{- if eq .Values.anchors.sink "file" }}
- name: DALSEGNO_ANCHOR_FILE
  value: /var/lib/dalsegno-anchors/anchors.jsonl
{{- end }}
{{- with .Values.retention.purgeDays }}
{{- if $.Values.postgres.migrationSecret.name }}
{{- fail "retention.purgeDays needs a role that may delete runs, and with postgres.migrationSecret the operator's may not: run `dalsegno runs purge` as the role of the migrationSecret instead" }}
{{- end }}
- name: DALSEGNO_PURGE_DAYS
  value: {{ . | quote }}
{{- end }}
{{- with .Values.checkpoints.snapshotEvery }}
- name: DALSEGNO_SNAPSHOT_EVERY
  value: {{ . | quote }}
{{- end }}
- name: DALSEGNO_CONCURRENCY
  value: {{ .Values.operator.concurrency | quote }}
- name: DALSEGNO_STATE_READ_BYTES
  value: {{ .Values.operator.memory.stateReads }}
- name: DALSEGNO_LEADER_ELECTION
  value: {{ include "dalsegno.leaderElection" . | default "false" | quote }}
{{- with .Values.watchNamespaces }}
- name: DALSEGNO_WATCH_NAMESPACES
  value: {{ join "," . | quote }}
{{- end }}
# The operator compares these policies with those of the API server. Nobody's decision counts while one differs.
- name: DALSEGNO_POLICIES
  value: {{ include "dalsegno.expectedPolicies" . | quote }}
- name: DALSEGNO_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: DALSEGNO_POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- end }}

{{/* The environment of the migration. The role of the migrationSecret creates the tables, else that of existingSecret. */}}
{{- define "dalsegno.env.migrate" -}}
{{- with .Values.postgres.migrationSecret.name }}
{{- if not $.Values.postgres.role }}
{{- fail "postgres.migrationSecret needs postgres.role: the role of postgres.existingSecret, to which the owner of the tables grants its rights" }}
{{- end }}
- name: DALSEGNO_LOG
  value: {{ $.Values.log | quote }}
- name: DALSEGNO_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $.Values.postgres.migrationSecret.key }}
- name: DALSEGNO_GRANT_TO
  value: {{ $.Values.postgres.role | quote }}
{{- else }}
{{- with .Values.postgres.role }}
{{- fail (printf "postgres.role=%s needs postgres.migrationSecret: the Secret of the role that owns the tables and grants rights to postgres.role; without it the role of postgres.existingSecret owns the tables and can change the audit" .) }}
{{- end }}
{{- include "dalsegno.env.common" . }}
{{- end }}
{{- end }}

{{/* The init container that migrates PostgreSQL's schema to this version. Concurrent migrations wait for each other. */}}
{{- define "dalsegno.migrate" -}}
initContainers:
  - name: migrate
    args: [migrate]
    {{- include "dalsegno.container" . | nindent 4 }}
    env:
      {{- include "dalsegno.env.migrate" . | nindent 6 }}
      {{- include "dalsegno.ca.env" . | nindent 6 }}
    {{- if .Values.postgres.caSecret.name }}
    volumeMounts:
      {{- include "dalsegno.ca.mount" . | nindent 6 }}
    {{- end }}
    resources:
      requests:
        cpu: 50m
        memory: 64Mi
{{- end }}

{{/* What the operator does with runs and their pods. No right to Secrets: the kubelet mounts the Secret of a run's input. */}}
{{- define "dalsegno.runRules" -}}
# patch: the finalizer. delete: retention.ttlSecondsAfterFinished.
- apiGroups: [dalsegno.dev]
  resources: [agentruns]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [dalsegno.dev]
  resources: [agentdefinitions]
  verbs: [get, list, watch]
# patch: a decision that does not count is removed. delete: an approval that is over or was replaced.
- apiGroups: [dalsegno.dev]
  resources: [agentapprovals]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [dalsegno.dev]
  resources: [agentruns/status, agentdefinitions/status, agentapprovals/status]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  # patch: the CA of the gateway, in an annotation; the finalizer of a pod whose agent keeps its own checkpoints.
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
# Only the events of a pod say that it waits for a volume.
- apiGroups: [""]
  resources: [events]
  verbs: [list]
# Runs that a quota refused are tried again when the quota changes.
- apiGroups: [""]
  resources: [resourcequotas]
  verbs: [list, watch]
{{- end }}
