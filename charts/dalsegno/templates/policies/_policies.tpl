{{/*
The admission policies that the operator relies on: who changed what, and who may decide what. Each is defined here once.
The chart installs it, and the operator compares it with what the API server has, so that nobody decides while it is
missing or changed.
*/}}

{{/* Prefix of their names. There is one release per cluster, but two may meet while it moves to another namespace. */}}
{{- define "dalsegno.policyPrefix" -}}
{{ .Release.Name }}.{{ .Release.Namespace }}
{{- end }}

{{/* Labels without a version: an upgrade that does not change a policy must not write it. */}}
{{- define "dalsegno.policyLabels" -}}
{{ include "dalsegno.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* The name of the operator's ServiceAccount, as the API server knows it. */}}
{{- define "dalsegno.operatorUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:dalsegno
{{- end }}

{{/* "true" if the API server stamps changes itself (Kubernetes 1.36 or later). Else it only refuses forged stamps. */}}
{{- define "dalsegno.stamps" -}}
{{- $served := .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" }}
{{- if ternary $served .Values.policies.mutate (kindIs "invalid" .Values.policies.mutate) }}true{{ end }}
{{- end }}

{{/* What a stamp of a person's change is made from: a name, the annotation, and when it is made. */}}
{{- define "dalsegno.stampList" -}}
- name: mode
  annotation: dalsegno.dev/operating-mode-by
  keep: true
  changed: >-
    variables.isRun && oldObject != null
    && (has(dyn(object.spec).operatingMode) ? dyn(object.spec).operatingMode : 'Running')
    != (has(dyn(oldObject.spec).operatingMode) ? dyn(oldObject.spec).operatingMode : 'Running')
- name: reset
  annotation: dalsegno.dev/reset-generation-by
  keep: true
  changed: >-
    variables.isRun && oldObject != null
    && (has(dyn(object.spec).recovery) && has(dyn(object.spec).recovery.resetGeneration)
    ? dyn(object.spec).recovery.resetGeneration : 0)
    != (has(dyn(oldObject.spec).recovery) && has(dyn(oldObject.spec).recovery.resetGeneration)
    ? dyn(oldObject.spec).recovery.resetGeneration : 0)
- name: rewind
  annotation: dalsegno.dev/rewind-by
  keep: true
  changed: >-
    variables.isRun && oldObject != null
    && (has(dyn(object.spec).rewind) ? dyn(object.spec).rewind : dyn({}))
    != (has(dyn(oldObject.spec).rewind) ? dyn(oldObject.spec).rewind : dyn({}))
- name: spec
  annotation: dalsegno.dev/spec-by
  changed: >-
    variables.isRun
    ? has(dyn(object.spec).agent)
    && (oldObject == null || !has(dyn(oldObject.spec).agent) || dyn(object.spec).agent != dyn(oldObject.spec).agent)
    : oldObject == null || dyn(object.spec) != dyn(oldObject.spec)
{{- end }}

{{/* The rules, conditions and variables that both stamp policies share. */}}
{{- define "dalsegno.stampVariables" -}}
failurePolicy: Fail
matchConstraints:
  resourceRules:
    - apiGroups: [dalsegno.dev]
      apiVersions: ["*"]
      operations: [CREATE, UPDATE]
      resources: [agentruns, agentdefinitions]
matchConditions:
  - name: not-the-operator
    expression: request.userInfo.username != '{{ include "dalsegno.operatorUser" . }}'
variables:
  - name: isRun
    expression: request.resource.resource == 'agentruns'
  - name: have
    expression: "has(object.metadata.annotations) ? object.metadata.annotations : {}"
  - name: had
    expression: "oldObject != null && has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {}"
  - name: now
    expression: >-
      (oldObject == null ? '1' : string(oldObject.metadata.generation + 1)) + ' ' + request.userInfo.username
  {{- range (include "dalsegno.stampList" . | fromYamlArray) }}
  - name: {{ .name }}Changed
    expression: {{ .changed | quote }}
  - name: {{ .name }}Had
    expression: "'{{ .annotation }}' in variables.had ? string(variables.had['{{ .annotation }}']) : ''"
  {{- end }}
  - name: creatorHad
    expression: "'dalsegno.dev/created-by' in variables.had ? string(variables.had['dalsegno.dev/created-by']) : ''"
{{- end }}

{{/* Stamps each guarded change with its generation and its user, and puts a forged stamp right. */}}
{{- define "dalsegno.policy.stamp" -}}
{{ include "dalsegno.stampVariables" . }}
  {{- range (include "dalsegno.stampList" . | fromYamlArray) }}
  - name: {{ .name }}By
    expression: "variables.{{ .name }}Changed ? variables.now : variables.{{ .name }}Had"
  {{- end }}
  - name: creatorBy
    expression: "!variables.isRun ? '' : oldObject == null ? request.userInfo.username : variables.creatorHad"
reinvocationPolicy: IfNeeded
mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: >-
        (!has(object.metadata.annotations) && (variables.modeBy != '' || variables.resetBy != ''
        || variables.rewindBy != '' || variables.specBy != '' || variables.creatorBy != '')
        ? [JSONPatch{op: 'add', path: '/metadata/annotations', value: {}}] : [])
        {{- range (include "dalsegno.stampList" . | fromYamlArray) }}
        + (variables.{{ .name }}By != ''
        ? [JSONPatch{op: 'add', path: '/metadata/annotations/' + jsonpatch.escapeKey('{{ .annotation }}'), value: variables.{{ .name }}By}]
        : '{{ .annotation }}' in variables.have
        ? [JSONPatch{op: 'remove', path: '/metadata/annotations/' + jsonpatch.escapeKey('{{ .annotation }}')}]
        : [])
        {{- end }}
        + (variables.creatorBy != ''
        ? [JSONPatch{op: 'add', path: '/metadata/annotations/' + jsonpatch.escapeKey('dalsegno.dev/created-by'), value: variables.creatorBy}]
        : 'dalsegno.dev/created-by' in variables.have
        ? [JSONPatch{op: 'remove', path: '/metadata/annotations/' + jsonpatch.escapeKey('dalsegno.dev/created-by')}]
        : [])
{{- end }}

{{/* Refuses a forged stamp. */}}
{{- define "dalsegno.policy.stamps" -}}
{{ include "dalsegno.stampVariables" . }}
  {{- range (include "dalsegno.stampList" . | fromYamlArray) }}
  - name: {{ .name }}By
    expression: "'{{ .annotation }}' in variables.have ? string(variables.have['{{ .annotation }}']) : ''"
  {{- end }}
  - name: creatorBy
    expression: "'dalsegno.dev/created-by' in variables.have ? string(variables.have['dalsegno.dev/created-by']) : ''"
validations:
  {{- range (include "dalsegno.stampList" . | fromYamlArray) }}
  # {{ if .keep }}An old stamp may be kept: its generation proves nothing about this change.{{ else }}An old stamp may not be kept over a changed agent.{{ end }}
  - expression: >-
      variables.{{ .name }}By == ''
      || (variables.{{ .name }}Changed && variables.{{ .name }}By == variables.now)
      || ({{ if not .keep }}!variables.{{ .name }}Changed && {{ end }}variables.{{ .name }}By == variables.{{ .name }}Had)
    reason: Forbidden
    messageExpression: >-
      'annotation {{ .annotation }} says who made a change: leave it out, or write "' + variables.now
      + '" together with the change'
  {{- end }}
  - expression: >-
      variables.creatorBy == ''
      || (oldObject == null ? variables.creatorBy == request.userInfo.username : variables.creatorBy == variables.creatorHad)
    reason: Forbidden
    messageExpression: >-
      'annotation dalsegno.dev/created-by says who created the run: leave it out, or write "' + request.userInfo.username
      + '" on creation'
{{- end }}

{{/* Who may do what with an AgentApproval. */}}
{{- define "dalsegno.policy.approvals" -}}
failurePolicy: Fail
matchConstraints:
  resourceRules:
    - apiGroups: [dalsegno.dev]
      apiVersions: ["*"]
      operations: [CREATE, UPDATE]
      resources: [agentapprovals, agentapprovals/status]
matchConditions:
  - name: not-the-operator
    expression: request.userInfo.username != '{{ include "dalsegno.operatorUser" . }}'
variables:
  # They remove owner references and finalizers while a run or a namespace is deleted.
  - name: isCollector
    expression: >-
      request.userInfo.username in ['system:kube-controller-manager',
      'system:serviceaccount:kube-system:generic-garbage-collector',
      'system:serviceaccount:kube-system:namespace-controller']
  - name: had
    expression: oldObject != null && has(dyn(oldObject.spec).decision)
  - name: have
    expression: has(dyn(object.spec).decision)
  - name: decides
    expression: oldObject != null && !variables.had && variables.have
  - name: hadSecond
    expression: oldObject != null && has(dyn(oldObject.spec).secondDecision)
  - name: haveSecond
    expression: has(dyn(object.spec).secondDecision)
  - name: decidesSecond
    expression: oldObject != null && !variables.hadSecond && variables.haveSecond
  - name: isOver
    expression: >-
      oldObject != null && has(oldObject.status) && has(oldObject.status.conditions)
      && oldObject.status.conditions.exists(it, it.type in ['Expired', 'Withdrawn', 'Applied'] && it.status == 'True')
validations:
  - expression: oldObject != null
    reason: Forbidden
    message: only the operator creates an AgentApproval, for an approval that an agent has asked for
  - expression: "!has(request.subResource) || request.subResource == ''"
    reason: Forbidden
    message: only the operator writes the status of an AgentApproval
  - expression: >-
      oldObject == null || (object.spec.runRef == oldObject.spec.runRef && object.spec.waitID == oldObject.spec.waitID
      && object.spec.epoch == oldObject.spec.epoch && object.spec.turn == oldObject.spec.turn
      && object.spec.proposalHash == oldObject.spec.proposalHash && object.spec.title == oldObject.spec.title
      && object.spec.summary == oldObject.spec.summary && object.spec.onTimeout == oldObject.spec.onTimeout
      && object.spec.fourEyes == oldObject.spec.fourEyes
      && has(object.spec.deadlineTime) == has(oldObject.spec.deadlineTime)
      && (!has(object.spec.deadlineTime) || object.spec.deadlineTime == oldObject.spec.deadlineTime))
    reason: Forbidden
    message: only the operator writes anything but spec.decision and spec.secondDecision of an AgentApproval
  - expression: >-
      oldObject == null || variables.isCollector
      || ((has(object.metadata.labels) ? object.metadata.labels : {})
      == (has(oldObject.metadata.labels) ? oldObject.metadata.labels : {})
      && (has(object.metadata.annotations) ? object.metadata.annotations : {})
      == (has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {})
      && (has(object.metadata.finalizers) ? object.metadata.finalizers : [])
      == (has(oldObject.metadata.finalizers) ? oldObject.metadata.finalizers : [])
      && (has(object.metadata.ownerReferences) ? dyn(object.metadata.ownerReferences) : dyn([]))
      == (has(oldObject.metadata.ownerReferences) ? dyn(oldObject.metadata.ownerReferences) : dyn([])))
    reason: Forbidden
    message: only the operator writes labels, annotations, finalizers or owners of an AgentApproval
  - expression: >-
      (!variables.had || (variables.have && dyn(object.spec).decision == dyn(oldObject.spec).decision))
      && (!variables.hadSecond
      || (variables.haveSecond && dyn(object.spec).secondDecision == dyn(oldObject.spec).secondDecision))
    reason: Forbidden
    message: a decision cannot be changed or removed
  - expression: "!(variables.decides || variables.decidesSecond) || !variables.isOver"
    reason: Forbidden
    message: this approval is over; its conditions say why
  - expression: "!variables.decides || dyn(object.spec).decision.by == request.userInfo.username"
    reason: Forbidden
    messageExpression: >-
      'spec.decision.by must be the name of the user who decides: "' + request.userInfo.username + '"'
  - expression: "!variables.decidesSecond || dyn(object.spec).secondDecision.by == request.userInfo.username"
    reason: Forbidden
    messageExpression: >-
      'spec.secondDecision.by must be the name of the user who decides: "' + request.userInfo.username + '"'
  - expression: "!variables.decides || dyn(object.spec).decision.proposalHash == dyn(oldObject.spec).proposalHash"
    reason: Forbidden
    message: spec.decision.proposalHash must be the approval's own proposalHash
  - expression: "!variables.decidesSecond || dyn(object.spec).secondDecision.proposalHash == dyn(oldObject.spec).proposalHash"
    reason: Forbidden
    message: spec.secondDecision.proposalHash must be the approval's own proposalHash
  - expression: "!variables.decidesSecond || variables.had"
    reason: Forbidden
    message: a second decision is about a first one, which is not there
  - expression: >-
      !(variables.decides || variables.decidesSecond)
      || authorizer.group('dalsegno.dev').resource('agentapprovals').namespace(request.namespace)
      .name(object.metadata.name).check('approve').allowed()
    reason: Forbidden
    messageExpression: >-
      'deciding needs the verb approve on AgentApproval ' + object.metadata.name + ' in namespace ' + request.namespace
      + ', which ' + request.userInfo.username + ' does not have'
{{- end }}

{{/* Spec of a binding. */}}
{{- define "dalsegno.policyBinding" -}}
policyName: {{ . }}
validationActions: [Deny]
{{- end }}

{{/* The policies and bindings of which the operator expects that the API server has them, as JSON. */}}
{{- define "dalsegno.expectedPolicies" -}}
{{- $prefix := include "dalsegno.policyPrefix" . }}
{{- $expected := list }}
{{- range $name := list "stamps" "approvals" }}
{{- $full := printf "%s.%s" $prefix $name }}
{{- $spec := include (printf "dalsegno.policy.%s" $name) $ | fromYaml }}
{{- $expected = append $expected (dict "kind" "ValidatingAdmissionPolicy" "name" $full "spec" $spec) }}
{{- $binding := include "dalsegno.policyBinding" $full | fromYaml }}
{{- $expected = append $expected (dict "kind" "ValidatingAdmissionPolicyBinding" "name" $full "spec" $binding) }}
{{- end }}
{{- if include "dalsegno.stamps" . }}
{{- $full := printf "%s.stamp" $prefix }}
{{- $spec := include "dalsegno.policy.stamp" . | fromYaml }}
{{- $expected = append $expected (dict "kind" "MutatingAdmissionPolicy" "name" $full "spec" $spec) }}
{{- $expected = append $expected (dict "kind" "MutatingAdmissionPolicyBinding" "name" $full "spec" (dict "policyName" $full)) }}
{{- end }}
{{- $expected | toJson }}
{{- end }}
